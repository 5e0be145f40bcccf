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


class ValueOutOfRange(SluicewayError):
    """A value that was read has no form in Python; `batches()` gives it as Arrow's."""

    code = "value_out_of_range"
