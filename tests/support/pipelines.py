"""Pipelines and lag histories for the dashboard's tests and screenshots."""

import math
from datetime import UTC, datetime

from endpoints import Site, fresh_id, site
from gateways import Rig
from sluiceway_gateway.channels.model import Phase
from sluiceway_gateway.lag_history import store
from sluiceway_gateway.lag_history.model import FINEST, GroupPoint, HistoryPoint
from sluiceway_gateway.lag_history.store import PointWrite


def record_lag(
    target: Site, hours: float, *, names: tuple[str, ...] = ("archive", "delays")
) -> None:
    """Write points up to now: a wave of lag, unknown for one group in the last ten minutes."""
    now = target.rig.clock.now = datetime.now(UTC)
    now_s = FINEST.start(now.timestamp())
    previous_s = None
    for number in range(int(hours * 360), -1, -1):
        at_s = now_s - 10 * number
        groups = {}
        for place, name in enumerate(names):
            lag = int(1000 * (1 + place) * (1 + math.sin(number / 30 + place)))
            known = place == 0 or number > 60
            groups[name] = GroupPoint(
                lag_messages=lag if known else None,
                lag_seconds=lag / 40 if known else None,
                lag_seconds_at_least=False,
                read_rate=50.0 + place,
            )
        point = HistoryPoint(at_s=at_s, write_rate=60.0, groups=groups)
        with target.rig.database.write() as tx:
            store.write(
                tx, [PointWrite(channel_uid=target.uid, point=point, previous_s=previous_s)]
            )
        previous_s = at_s


def create_pipeline(rig: Rig) -> dict[str, Site]:
    """Create `flights`, written by a loader, and `delays`, written from it by a Spark query.

    A reader of `delays` has failed.
    """
    sites = {name: site(rig, name) for name in ("flights", "delays")}
    for name in sites:
        rig.observe(name, Phase.READY)
    flights, delays = sites.values()
    spark = {"application": "nightly", "query": "sums", "ui": "http://driver.example:4040"}
    flights.member(role="writer", group="loader")
    flights.session = delays.session = fresh_id()
    flights.member(group="sums", spark=spark)
    delays.member(role="writer", group="sums", spark=spark)
    delays.session = fresh_id()
    delays.detach(delays.member(group="archive"), "error", cause="the disk is full")
    delays.session = fresh_id()
    return sites
