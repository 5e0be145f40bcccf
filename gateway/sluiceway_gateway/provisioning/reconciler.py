"""Reconciler: a page of due channels per pass.

Kafka is never called inside a transaction. A replica that has lost its lease does no harm: Kafka is
changed, and a status is saved, only if the channel is unchanged since it was read. A channel that
changes during a call to Kafka is compared again at once.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from functools import partial

import structlog

from sluiceway_gateway.channels import store as channels_store
from sluiceway_gateway.channels.model import Channel, Phase, TopicRef
from sluiceway_gateway.core.clock import Clock
from sluiceway_gateway.core.db.engine import Database, WriteTransaction
from sluiceway_gateway.core.db.failures import reason_of
from sluiceway_gateway.core.errors import DatabaseUnavailable, KafkaUnavailable
from sluiceway_gateway.core.kafka.admin import KafkaAdmin
from sluiceway_gateway.core.kafka.client import log_unavailable
from sluiceway_gateway.core.kafka.model import (
    AlterConfig,
    Cause,
    CreateTopic,
    DeleteTopic,
    DesiredTopic,
    GrowPartitions,
    ObservedTopic,
    Rejection,
    unavailable_reason,
)
from sluiceway_gateway.core.passes import run_steps
from sluiceway_gateway.provisioning.reconcile_result import (
    BACKOFF_MAX_S,
    RACES,
    ReconcileResult,
    compute_status,
    desired_topic,
    unfulfilled,
    unreachable,
)
from sluiceway_gateway.provisioning.store import (
    DueChannel,
    due,
    is_used,
    misdated,
    put_off,
    record_observation,
    remove,
)
from sluiceway_gateway.provisioning.topic import Action, Plan, TopicMatch, plan


@dataclass(frozen=True, kw_only=True)
class Applied:
    """Topics that actions changed, and rejections by topic."""

    created: frozenset[str] = frozenset()
    grown: frozenset[str] = frozenset()
    configured: frozenset[str] = frozenset()
    deleted: frozenset[str] = frozenset()
    rejections: Mapping[str, Rejection] = field(default_factory=dict)

    @property
    def topics(self) -> frozenset[str]:
        """All changed topics."""
        return self.created | self.grown | self.configured | self.deleted


def apply(kafka: KafkaAdmin, actions: Iterable[Action]) -> Applied:
    """Apply actions; a refusal for one topic does not affect others.

    Raises KafkaUnavailable, possibly after some of the actions.
    """
    requested = list(actions)
    rejections: dict[str, Rejection] = {}

    def accepted(outcomes: Mapping[str, Rejection | None]) -> frozenset[str]:
        for name, rejection in outcomes.items():
            if rejection is not None:
                rejections.setdefault(name, rejection)
        return frozenset(name for name, rejection in outcomes.items() if rejection is None)

    created = accepted(
        kafka.create_topics([action for action in requested if isinstance(action, CreateTopic)])
    )
    # Partitions cannot be added to a topic whose creation was refused; it keeps that rejection.
    growths = [action for action in requested if isinstance(action, GrowPartitions)]
    grown = accepted(
        kafka.grow_partitions([growth for growth in growths if growth.name not in rejections])
    )
    configured = accepted(
        kafka.alter_configs([action for action in requested if isinstance(action, AlterConfig)])
    )
    deletions = kafka.delete_topics(
        [action.name for action in requested if isinstance(action, DeleteTopic)]
    )
    # An absent topic counts as deleted.
    deleted = accepted(
        {name: rejection for name, rejection in deletions.items() if not _absent(rejection)}
    )
    return Applied(
        created=created, grown=grown, configured=configured, deleted=deleted, rejections=rejections
    )


def _absent(rejection: Rejection | None) -> bool:
    return rejection is not None and rejection.cause is Cause.TOPIC_ABSENT


_log = structlog.get_logger(__name__)

#: Interval at which the leader checks for changes that other replicas accepted.
_PAUSE_S = 0.5


@dataclass(frozen=True, kw_only=True)
class ReconcileCounts:
    """Channels per outcome of one pass.

    `changed` have a new status or are deleted; `conflicts` were changed meanwhile. `more` is set
    if others may be due, because the page was full, or rows of a deleted channel are left.
    """

    checked: int = 0
    changed: int = 0
    created: int = 0
    grown: int = 0
    configured: int = 0
    deleted: int = 0
    removed: int = 0
    refused: int = 0
    conflicts: int = 0
    unreachable: int = 0
    more: bool = False

    @property
    def pause_s(self) -> float:
        """The time until the next pass."""
        return 0.0 if self.more else _PAUSE_S


_COUNTED = tuple(field.name for field in fields(ReconcileCounts) if field.name != "more")


@dataclass(eq=False, repr=False, kw_only=True)
class Reconciler:
    """Compares due channels with Kafka and acts on the difference.

    `delete_history` deletes some rows of a deleted channel, and returns whether there may be more.
    `wait` sleeps for some seconds, or until the process stops. Changes of topics become visible on
    all brokers in the pauses `settle_s`.
    """

    database: Database
    kafka: KafkaAdmin
    clock: Clock
    resync_s: float
    delete_history: Callable[[WriteTransaction, str], bool]
    wait: Callable[[float], object]
    page_size: int = 100
    settle_s: tuple[float, ...] = (0.0, 0.02, 0.05, 0.1, 0.2, 0.4)

    def run_once(self) -> ReconcileCounts:
        """Reconcile one page of due channels.

        Raises DatabaseUnavailable. An unavailable Kafka is recorded in the channels' status. After
        another error, reconciles the channels one by one, so that one delays no other.
        """
        page = self._due()
        if not page:
            return ReconcileCounts()
        try:
            return self._reconcile_page(page)
        except DatabaseUnavailable:
            raise
        except Exception as error:
            if len(page) == 1:
                raise
            _log.warning("channels are reconciled one by one", **reason_of(error))
        done = run_steps(partial(self._reconcile_page, [channel]) for channel in page)
        return ReconcileCounts(
            **{name: sum(getattr(counts, name) for counts in done) for name in _COUNTED},
            more=len(page) == self.page_size or any(counts.more for counts in done),
        )

    def _reconcile_page(self, page: list[DueChannel]) -> ReconcileCounts:
        forgotten = [due_channel for due_channel in page if _only_row_remains(due_channel)]
        others = [due_channel for due_channel in page if not _only_row_remains(due_channel)]
        done, is_away = Applied(), False
        try:
            done, results = self._reconcile(others)
        except KafkaUnavailable as error:
            is_away = True
            cause = str(unavailable_reason(error.access_failure))
            log_unavailable(_log, error, cause=cause, channels=len(others))
            results = {
                due_channel.channel.uid: unreachable(
                    due_channel.channel,
                    error.access_failure,
                    refusals=due_channel.refusals,
                    now=self.clock(),
                )
                for due_channel in others
            }
        for due_channel in forgotten:
            results[due_channel.channel.uid] = ReconcileResult(channel=None)
        changed, conflicts = self._record(page, results)
        self._delete_orphans(
            [channel.topic for channel in conflicts if channel.topic.name in done.created]
        )
        # Each in its own transaction, so that a slow one delays no other channel's status.
        ended = sorted(uid for uid, result in results.items() if result.channel is None)
        removals = run_steps(partial(self._remove, uid) for uid in ended)
        return ReconcileCounts(
            checked=0 if is_away else len(others),
            changed=changed + sum(removals),
            created=len(done.created),
            grown=len(done.grown),
            configured=len(done.configured),
            deleted=len(done.deleted),
            removed=sum(removals),
            refused=sum(rejection.cause not in RACES for rejection in done.rejections.values()),
            conflicts=len(conflicts),
            unreachable=len(others) if is_away else 0,
            more=len(page) == self.page_size or not all(removals),
        )

    def _due(self) -> list[DueChannel]:
        now, longest_s = self.clock(), max(self.resync_s, BACKOFF_MAX_S)
        with self.database.read() as tx:
            return due(tx, now=now, limit=self.page_size) or misdated(
                tx,
                latest=now + timedelta(seconds=longest_s),
                latest_in_progress=now + timedelta(seconds=BACKOFF_MAX_S),
                limit=self.page_size,
            )

    def _reconcile(self, page: list[DueChannel]) -> tuple[Applied, dict[str, ReconcileResult]]:
        """Observe, plan, apply, observe changed topics again, and compute the status."""
        if page:
            # In another cluster all topics would be missing, and their channels fail.
            self.kafka.require_cluster()
        desired = {
            due_channel.channel.topic.name: desired_topic(due_channel.channel)
            for due_channel in page
        }
        seen = self.kafka.observe(desired)
        topics = dict(seen.topics)
        # A topic that Kafka did not describe is not changed.
        plans = {
            name: plan(topic, topics.get(name))
            for name, topic in desired.items()
            if name not in seen.rejections
        }
        requested = {
            name: first_actions
            for name, first in plans.items()
            if (first_actions := actions(desired[name], first))
        }
        changing = [
            due_channel for due_channel in page if due_channel.channel.topic.name in requested
        ]
        unchanged = self._unchanged(changing)
        done = apply(self.kafka, [action for topic in unchanged for action in requested[topic]])
        self._observe_again(desired, done, topics)
        now = self.clock()
        results: dict[str, ReconcileResult] = {}
        for due_channel in page:
            channel, name = due_channel.channel, due_channel.channel.topic.name
            if name in seen.rejections:
                results[channel.uid] = unfulfilled(
                    channel, seen.rejections[name], refusals=due_channel.refusals, now=now
                )
                continue
            if name in requested and name not in unchanged:
                # A conflict, without an effect.
                results[channel.uid] = ReconcileResult(channel=channel)
                continue
            results[channel.uid] = compute_status(
                channel,
                refusals=due_channel.refusals,
                first=plans[name],
                last=plan(desired[name], topics.get(name)),
                observed=topics.get(name),
                rejection=done.rejections.get(name),
                now=now,
            )
        return done, results

    def _unchanged(self, page: list[DueChannel]) -> set[str]:
        """Return the topics of the channels that are as they were read.

        Another replica may have applied a later spec since then.
        """
        if not page:
            return set()
        with self.database.read() as tx:
            tags = channels_store.tags(tx, [due_channel.channel.name for due_channel in page])
        return {
            due_channel.channel.topic.name
            for due_channel in page
            if (tag := tags.get(due_channel.channel.name)) is not None
            and (tag.uid, tag.revision) == (due_channel.channel.uid, due_channel.channel.revision)
        }

    def _observe_again(
        self, desired: Mapping[str, DesiredTopic], done: Applied, topics: dict[str, ObservedTopic]
    ) -> None:
        """Update `topics` with the changed ones, once their changes are visible."""
        pending = set(done.topics)
        for pause_s in self.settle_s:
            if not pending:
                return
            self.wait(pause_s)
            seen = self.kafka.observe(pending)
            for name in pending - seen.rejections.keys():
                topics.pop(name, None)
            topics |= seen.topics
            pending = {name for name in pending if plan(desired[name], topics.get(name)).actions}

    def _record(
        self, page: list[DueChannel], results: Mapping[str, ReconcileResult]
    ) -> tuple[int, list[Channel]]:
        """Save all new statuses; return the number of changed channels, and unsaved ones."""
        changed, conflicts, now = 0, [], self.clock()
        with self.database.write() as tx:
            # In the order in which all transactions lock channels.
            for due_channel in sorted(page, key=lambda due_channel: due_channel.channel.uid):
                result = results[due_channel.channel.uid]
                if result.channel is None:
                    continue
                next_check_s = self.resync_s if result.next_check_s is None else result.next_check_s
                written = record_observation(
                    tx,
                    result.channel,
                    was=due_channel.channel,
                    now=now,
                    due_at=now + timedelta(seconds=next_check_s),
                    refusals=result.refusals,
                )
                if written is None:
                    conflicts.append(result.channel)
                    # Kafka may have got what another replica had replaced already.
                    channels_store.make_due(tx, [due_channel.channel.uid])
                else:
                    changed += written.revision != due_channel.channel.revision
        return changed, conflicts

    def _remove(self, uid: str) -> bool:
        """Delete a channel, or a part of its history; return whether the channel was deleted.

        A long history does not fit in one transaction.
        """
        with self.database.write() as tx:
            if not self.delete_history(tx, uid):
                return remove(tx, uid)
            # Behind other due channels.
            put_off(tx, uid, until=self.clock())
            return False

    def _delete_orphans(self, created: list[TopicRef]) -> None:
        """Delete topics that were created for channels whose rows are gone by now.

        Another replica may have recorded one meanwhile, and users kept or adopted it. A topic that
        was not observed is not deleted, because that is unknown.
        """
        if not created:
            return
        with self.database.read() as tx:
            names = [
                topic.name
                for topic in created
                if topic.id is not None and not is_used(tx, topic.name, topic.id)
            ]
        if names:
            _log.warning("deleting topics of deleted channels", topics=names)
            apply(self.kafka, [DeleteTopic(name=name) for name in names])


def _only_row_remains(due_channel: DueChannel) -> bool:
    """Return whether only the row is left to delete."""
    return due_channel.channel.phase is Phase.DELETING and due_channel.channel.keep_topic


def actions(desired: DesiredTopic, first: Plan) -> tuple[Action, ...]:
    """Return the actions of the first plan of a pass."""
    if desired.owned and not desired.wanted and first.match is TopicMatch.ABSENT:
        # A topic created a moment ago may not be visible yet; deletion asks the controller.
        return (DeleteTopic(name=desired.name),)
    return first.actions
