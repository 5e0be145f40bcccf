"""Reading a gateway's JSON without trusting its form."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, TypeVar

from sluiceway.errors import IncompatibleGateway

__all__ = ["Answer"]

_T = TypeVar("_T")


class Answer:
    """Typed access to parsed JSON.

    Each method takes the keys that lead to a value and returns it; where it is missing or of
    another type, IncompatibleGateway names its path.
    """

    def __init__(self, value: object, path: str) -> None:
        self.value = value
        self.path = path

    def at(self, *keys: str) -> "Answer":
        """Return what lies there, whatever it is."""
        # No local of a frame that raises has the value: there may be passwords in it.
        found = self
        for key in keys:
            path = f"{found.path}.{key}"
            if not isinstance(found.value, Mapping) or key not in found.value:
                raise self._wrong(path, "is missing")
            found = Answer(found.value[key], path)
        return found

    def given(self, key: str) -> "Answer | None":
        """Return what lies under `key`, None where an older gateway leaves it out."""
        present = isinstance(self.value, Mapping) and key in self.value
        return self.at(key) if present else None

    def text(self, *keys: str) -> str:
        """Return a string."""
        value: str = self.typed(str, *keys)
        return value

    def number(self, *keys: str) -> int:
        """Return a whole number."""
        value: int = self.typed(int, *keys)
        return value

    def amount(self, *keys: str) -> float:
        """Return a number, whole or not."""
        found = self.at(*keys)
        if type(found.value) is int:
            return float(found.value)
        value: float = found.typed(float)
        return value

    def flag(self, *keys: str) -> bool:
        """Return a boolean."""
        value: bool = self.typed(bool, *keys)
        return value

    def mapping(self, *keys: str) -> Mapping[str, Any]:
        """Return an object."""
        value: dict[str, Any] = self.typed(dict, *keys)
        return value

    def texts(self, *keys: str) -> Mapping[str, str]:
        """Return an object of strings."""
        found = self.at(*keys)
        return {key: found.text(key) for key in found.mapping()}

    def numbers(self, *keys: str) -> Mapping[int, int]:
        """Return an object of whole numbers by partition."""
        found = self.at(*keys)
        for key in found.mapping():
            if not key.isdecimal():
                raise self._wrong(f"{found.path}.{key}", "is no partition")
        return {int(key): found.number(key) for key in found.mapping()}

    def items(self, *keys: str) -> list["Answer"]:
        """Return the items of an array."""
        found = self.at(*keys)
        items: list[object] = found.typed(list)
        return [Answer(item, f"{found.path}[{i}]") for i, item in enumerate(items)]

    def time(self, *keys: str) -> datetime:
        """Return a time of ISO 8601."""
        text = self.text(*keys)
        try:
            return datetime.fromisoformat(text)
        except ValueError:
            raise self._wrong(".".join((self.path, *keys)), f"is no time: {text!r}") from None

    def optional(self, read: Callable[..., _T], *keys: str) -> _T | None:
        """Return None for null, else what `read` finds there."""
        return None if self.at(*keys).value is None else read(*keys)

    def typed(self, kind: type[Any], *keys: str) -> Any:
        """Return a value of exactly that type."""
        found = self.at(*keys)
        if type(found.value) is not kind:
            raise self._wrong(found.path, f"is {type(found.value).__name__}, not {kind.__name__}")
        return found.value

    @staticmethod
    def _wrong(path: str, what: str) -> IncompatibleGateway:
        return IncompatibleGateway(
            f"the gateway's answer does not fit this client: {path} {what}. Use versions of "
            "client and gateway that are at most two minor versions apart"
        )
