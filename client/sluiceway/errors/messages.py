"""What is wrong with a message that was read."""

from sluiceway.errors.root import SluicewayError


class CorruptMessage(SluicewayError):
    """The message at `offset` of `partition` cannot be read as a record of the channel.

    The reader's position stays before it: seek past it, or read with `on_corrupt="skip"`.
    """

    code = "corrupt_message"

    def __init__(self, *, channel: str, partition: int, offset: int, reason: str) -> None:
        super().__init__(
            f"channel {channel!r}, partition {partition}, offset {offset}: {reason}. Seek past "
            'it, or read with on_corrupt="skip"'
        )
        self.channel, self.partition, self.offset, self.reason = channel, partition, offset, reason

    @property
    def summary(self) -> str:
        """The message's place: the reason may quote what the message holds."""
        return (
            f"channel {self.channel!r}, partition {self.partition}, offset {self.offset}: it "
            "cannot be read as a record"
        )


class ValueOutOfRange(SluicewayError):
    """A value that was read has no form in Python; `batches()` gives it as Arrow's."""

    code = "value_out_of_range"
    tells_no_values = True
