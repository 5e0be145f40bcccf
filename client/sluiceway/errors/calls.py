"""What is wrong with a call."""

from sluiceway.errors.root import SluicewayError


class OptionError(SluicewayError, ValueError):
    """An argument, an option or a setting that makes no sense; the message says what would."""

    code = "invalid_option"


class CommitBeyondRead(OptionError):
    """A position to commit lies past what the reader has handed out; nothing was committed."""

    code = "commit_beyond_read"
    tells_no_values = True


class CheckpointMismatch(SluicewayError):
    """A streaming query's checkpoint belongs to another channel, or to one that was made anew."""

    code = "checkpoint_mismatch"


class EndpointClosed(SluicewayError):
    """The gateway, writer or reader was closed, or failed before; open a new one."""

    code = "endpoint_closed"
    tells_no_values = True


class SluicewayTimeout(SluicewayError, TimeoutError):
    """What was waited for did not happen in time; nothing was undone."""

    code = "timeout"
    tells_no_values = True
    retriable = True
