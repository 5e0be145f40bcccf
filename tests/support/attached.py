"""An endpoint as tests begin with it."""

from datetime import UTC, datetime

from sluiceway_gateway.endpoints.model import Endpoint, Mode, Place, Role

NOW = datetime(2030, 1, 1, tzinfo=UTC)
ENDPOINT = Endpoint(
    id="e" * 32,
    channel_uid="c" * 32,
    session="s" * 32,
    place=Place(role=Role.READER, group="delays", index=1),
    size=2,
    mode=Mode.SHARED,
    epoch=7,
    generation=1,
    attached_at=NOW,
    changed_at=NOW,
)
