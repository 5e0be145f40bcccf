"""What is wrong with the others at a channel."""

from sluiceway.errors.root import SluicewayError


class CounterpartError(SluicewayError):
    """The other side of the channel did not come to its end; `endpoints` are their ids."""

    code = "counterpart_error"
    tells_no_values = True
    retriable = True

    def __init__(self, message: str, *, endpoints: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.endpoints = endpoints


class WriterFailed(CounterpartError):
    """A writer ended by an error, and none took its place in time; what it wrote was handed out."""

    code = "writer_failed"


class WriterLost(CounterpartError):
    """A writer sent no heartbeat any more; what it is known to have written was handed out."""

    code = "writer_lost"
