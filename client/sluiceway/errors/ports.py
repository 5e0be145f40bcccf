"""What is wrong with some of a port's channels."""

from collections.abc import Mapping

from sluiceway.errors.root import SluicewayError


class PortError(SluicewayError):
    """Some of an output port's channels failed; all were tried. `errors` has each, by channel."""

    code = "port_failed"

    def __init__(self, doing: str, *, errors: Mapping[str, SluicewayError], channels: int) -> None:
        told = "; ".join(f"{name}: {error}" for name, error in errors.items())
        super().__init__(
            f"{doing} failed for {len(errors)} of the {channels} channels of an output port: {told}"
        )
        self.errors = dict(errors)
        self.retriable = all(error.retriable for error in errors.values())
