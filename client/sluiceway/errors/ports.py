"""What is wrong with some of a port's channels."""

from collections.abc import Mapping

from sluiceway.errors.root import SluicewayError, cause_of


class PortError(SluicewayError):
    """Some of an output port's channels failed; all were tried. `errors` has each, by channel."""

    code = "port_failed"

    def __init__(self, doing: str, *, errors: Mapping[str, SluicewayError], channels: int) -> None:
        failed = f"{doing} failed for {len(errors)} of the {channels} channels of an output port"
        super().__init__(f"{failed}: " + "; ".join(f"{name}: {e}" for name, e in errors.items()))
        self.errors = dict(errors)
        self.retriable = all(error.retriable for error in errors.values())
        self._failed = failed

    @property
    def summary(self) -> str:
        """How many channels failed, and the cause of each."""
        causes = "; ".join(f"{name}: {cause_of(error)}" for name, error in self.errors.items())
        return f"{self._failed}: {causes}"
