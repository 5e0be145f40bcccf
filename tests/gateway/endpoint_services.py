"""The services of endpoints on one database, without HTTP."""

import itertools
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from gateway_rig import NOBODY, TurnedClock

from sluiceway_gateway.auth.service import LOOPBACK, Tokens
from sluiceway_gateway.channels import store as channels_store
from sluiceway_gateway.channels.change import Change, created
from sluiceway_gateway.channels.model import Phase, SchemaVersion, TopicRef
from sluiceway_gateway.db.engine import Database, WriteTransaction
from sluiceway_gateway.endpoints.attach_batch import Attached, AttachRequest, AttachSpec
from sluiceway_gateway.endpoints.heartbeats import HeartbeatService
from sluiceway_gateway.endpoints.liveness import Reaper
from sluiceway_gateway.endpoints.service import AttachService, Endpoints
from sluiceway_gateway.groups.service import GroupService
from sluiceway_gateway.kafka.admin import KafkaAdmin
from sluiceway_gateway.offsets.service import Offsets
from sluiceway_gateway.provisioning.store import remove
from sluiceway_gateway.schemas import store as schemas_store

PARTITIONS = 4
SCHEMA = '{"fields":[],"name":"R","type":"record"}'
_numbers = itertools.count(1)


def before_each_commit(database: Database, do: Callable[[], object]) -> None:
    """From now on, call `do` at the end of each transaction that writes, before it is committed."""
    write = database.write

    @contextmanager
    def watched() -> Iterator[WriteTransaction]:
        with write() as tx:
            yield tx
            do()

    database.write = watched  # type: ignore[method-assign]


@dataclass
class Services:
    """All that endpoints need, on one database, with clocks that tests turn."""

    database: Database
    clock: TurnedClock = field(default_factory=TurnedClock)
    now_s: float = 0.0
    steps: int = 0

    def __post_init__(self) -> None:
        def nobody() -> None: ...

        given: dict[str, Any] = {"clock": self.clock}
        tokens = Tokens(self.database, None)
        self.attachment = AttachService(self.database, tokens, wake=nobody, notify=nobody, **given)
        self.endpoints = Endpoints(
            self.database, topics=KafkaAdmin(NOBODY, timeout_s=0.1), notify=nobody, **given
        )
        self.beats = HeartbeatService(self.database, tokens, notify=nobody, **given)
        self.offsets = Offsets(self.database, tokens, **given)
        self.groups = GroupService(self.database, notify=nobody)
        self.reaper = Reaper(
            database=self.database,
            monotonic=lambda: self.now_s,
            **given,
        )

    def channel(self) -> tuple[str, str]:
        """Make a channel that is ready; return its name and its uid."""
        name, now = f"channel-{next(_numbers)}", self.clock()
        with self.database.write() as tx:
            id_ = schemas_store.register(tx, fingerprint="one", definition=SCHEMA, now=now)
            version = SchemaVersion(id=id_, version=1, definition=SCHEMA, created_at=now)
            channel = created(
                Change(partitions=PARTITIONS),
                name=name,
                uid=uuid.uuid4().hex,
                schema=version,
                prefix="",
                now=now,
            )
            topic = TopicRef(name=channel.topic.name, id="t", partitions=PARTITIONS)
            channels_store.insert(tx, replace(channel, phase=Phase.READY, topic=topic))
            schemas_store.assign(tx, channel_uid=channel.uid, version=version)
        return name, channel.uid

    def attach(self, name: str, spec: AttachSpec, *, uid: str) -> Attached:
        request = AttachRequest(channel=name, channel_uid=uid, spec=spec, principal=LOOPBACK)
        return self.attachment.submit(request).result(30)

    def forget(self, uid: str) -> None:
        """Remove a channel with all that is its."""
        with self.database.write() as tx:
            remove(tx, uid, from_phases=tuple(Phase))
