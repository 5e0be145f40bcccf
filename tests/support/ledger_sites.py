"""Ledgers of channels over HTTP, on topics with messages."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import httpx

from gateways import Rig, result
from sluiceway.api.ledger import manifest_digest
from sluiceway_gateway.channels.model import Phase, TopicRef
from sluiceway_gateway.core.kafka.model import Interval
from sluiceway_gateway.ledger import store
from sluiceway_gateway.ledger.model import halt
from topics import Topics

Intervals = Mapping[int, Sequence[tuple[int, int]]]
#: Headers of clients that support exactly-once delivery.
FEATURES = {"Sluiceway-Features": "exactly-once"}


def written_topic(
    bootstrap_servers: str, *, partitions: int, records: int, **config: str
) -> TopicRef:
    """Create a topic with this number of messages in each partition."""
    topics = Topics(bootstrap_servers)
    options = {name.replace("_", "."): value for name, value in config.items()}
    created = topics.connect(partitions=partitions, config=options)
    for partition in range(partitions):
        topics.produce(created.topic_name, partition, [b""] * records)
    return TopicRef(name=created.topic_name, id=created.topic_id, partitions=partitions)


@dataclass(frozen=True, kw_only=True)
class LedgerSite:
    """A ready channel with exactly-once delivery, and requests to its ledger."""

    rig: Rig
    name: str
    uid: str
    topic: TopicRef

    @property
    def path(self) -> str:
        return f"/v1/channels/{self.name}"

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.rig.http.post(f"{self.path}/{path}", json={"uid": self.uid, **body})

    def post_open(
        self, key: str = "k1", owner: str = "job", instance: str = "run-1", **body: Any
    ) -> httpx.Response:
        return self.post("batches", key=key, owner=owner, instance=instance, **body)

    def open(self, *names: str, **body: Any) -> Any:
        """Open a batch, and return it."""
        return result(self.post_open(*names, **body))

    def post_commit(
        self, batch: Any, manifest: Intervals, *, instance: str = "run-1", **body: Any
    ) -> httpx.Response:
        counts = {
            str(partition): sum(max(0, end - first) for first, end in intervals)
            for partition, intervals in manifest.items()
        }
        request = {"instance": instance, "records": sum(counts.values()), "counts": counts}
        request["digest"] = manifest_digest(manifest)
        request["manifest"] = {
            str(partition): intervals for partition, intervals in manifest.items()
        }
        return self.post(f"batches/{batch['id']}/commit", **(request | body))

    def commit(self, batch: Any, manifest: Intervals, **body: Any) -> Any:
        """Commit a batch, and return the response."""
        return result(self.post_commit(batch, manifest, **body))

    def post_abort(self, batch: Any, instance: str | None = "run-1") -> httpx.Response:
        return self.post(f"batches/{batch['id']}/abort", instance=instance, cause="a test")

    def get_committed(self, *, etag: str | None = None, **params: Any) -> httpx.Response:
        headers = {} if etag is None else {"If-None-Match": etag}
        return self.rig.http.get(
            f"{self.path}/committed", params={"uid": self.uid, **params}, headers=headers
        )

    def committed(self, **params: Any) -> Any:
        """Return the visible runs."""
        return result(self.get_committed(**params))


def lose_records(site: LedgerSite, ends: Mapping[int, int]) -> None:
    """Make runs visible up to `ends`, above Kafka's watermarks, as after a loss of records."""
    with site.rig.database.write() as tx:
        was = store.hold_existing(tx, site.uid)
        visible = {**was.visible_end, **ends}
        before = {at: was.visible_end.get(at, 0) for at in ends}
        store.replace_runs(
            tx,
            site.uid,
            removed={},
            added={at: [Interval(before[at] + 1, end)] for at, end in ends.items()},
        )
        later = replace(was, visible_end=visible, stable=visible)
        store.save(tx, later, was=was, now=site.rig.clock())


def halt_ledger(site: LedgerSite, lost_from: Mapping[int, int]) -> None:
    """Halt the channel, as the gateway does after a loss of records."""
    with site.rig.database.write() as tx:
        was = store.hold_existing(tx, site.uid)
        store.save(tx, halt(was, lost_from), was=was, now=site.rig.clock())


def ledger_site(rig: Rig, topic: TopicRef, name: str = "flights", **spec: Any) -> LedgerSite:
    """Create an exactly-once channel on a topic with messages."""
    response = rig.put(name, delivery="exactly_once", partitions=topic.partitions, **spec)
    assert response.status_code == 201, response.text
    uid = rig.observe(name, Phase.READY, topic=topic).uid
    return LedgerSite(rig=rig, name=name, uid=uid, topic=topic)
