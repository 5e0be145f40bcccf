"""Where clients find Kafka: its listeners by name, each with the properties that reach it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sluiceway_gateway.domain.errors import InvalidRequest, Violation

UNNAMED = "default"
"""The name of the one listener of a gateway that has none by name."""


@dataclass(frozen=True, kw_only=True)
class Listeners:
    """Kafka properties for clients, by listener; `default` is for clients that name none.

    They may hold credentials, so they are left out of `repr`.
    """

    default: str
    properties: Mapping[str, Mapping[str, str]] = field(repr=False)

    def reached_by(self, name: str | None) -> Mapping[str, str]:
        """Return what a client gets; raises InvalidRequest for a name that there is not."""
        try:
            return self.properties[self.default if name is None else name]
        except KeyError:
            known = ", ".join(sorted(self.properties))
            raise InvalidRequest(
                f"There is no listener {name!r}; this gateway has {known}. Name one of them with "
                "SLUICEWAY_LISTENER or Gateway(listener=...), or leave it out for "
                f"{self.default!r}.",
                (Violation(pointer="query:listener", message=f"expected one of {known}"),),
            ) from None
