"""The root of the tree."""

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, kw_only=True)
class Violation:
    """One thing that is wrong with a request.

    `pointer` is a JSON pointer into the body ("/spec/partitions"), or where else
    the value was: "path:name", "query:limit", "header:If-Match".
    """

    pointer: str
    message: str


class SluicewayGatewayError(Exception):
    """Root of all errors of this package; `violations` says where in the request it lies."""

    code: ClassVar[str] = "internal_error"
    title: ClassVar[str] = "The gateway failed"
    retriable: ClassVar[bool] = False

    def __init__(self, detail: str, violations: tuple[Violation, ...] = ()) -> None:
        super().__init__(detail)
        self.violations = violations
