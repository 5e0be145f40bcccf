"""Closing and deletion of channels by requests, one transaction per call."""

from sluiceway_gateway.channels.change import deleted, etag
from sluiceway_gateway.channels.model import Channel, Phase
from sluiceway_gateway.channels.service import ChangeContext, Channels, hold_channel
from sluiceway_gateway.core.audit.model import AuditedAction
from sluiceway_gateway.core.clock import Clock, system_clock
from sluiceway_gateway.core.db.engine import Database, WriteTransaction
from sluiceway_gateway.core.db.idempotency import StoredResponse
from sluiceway_gateway.core.kafka.admin import KafkaAdmin
from sluiceway_gateway.endpoints import store as endpoints_store
from sluiceway_gateway.lifecycle.drain import bounds_for_deletion, require_unused
from sluiceway_gateway.lifecycle.model import closing
from sluiceway_gateway.lifecycle.store import usage_of_channel


class Lifecycle:
    """Closes and deletes channels."""

    def __init__(
        self,
        database: Database,
        kafka: KafkaAdmin,
        channels: Channels,
        *,
        clock: Clock = system_clock,
    ) -> None:
        self._database = database
        self._kafka = kafka
        self._channels = channels
        self._clock = clock

    def delete(
        self,
        name: str,
        context: ChangeContext,
        *,
        uid: str,
        keep_topic: bool,
        force: bool,
        if_empty: bool,
    ) -> StoredResponse:
        """Start deleting the channel; idempotent.

        Without `force`, raises EndpointsLive and, if the topic is deleted too, UnreadData (with
        `if_empty` for any record, read or not), or KafkaUnavailable if that cannot be determined.
        """
        bounds = None
        if not (force or keep_topic):
            bounds = bounds_for_deletion(
                self._database, self._kafka, name, context.request, if_empty=if_empty
            )

        def act(tx: WriteTransaction) -> tuple[Channel, bool]:
            channel = hold_channel(tx, name, uid)
            context.precondition.check(etag(channel))
            if not (force or channel.phase is Phase.DELETING):
                require_unused(
                    tx, channel, keeps_topic=keep_topic, bounds=bounds, if_empty=if_empty
                )
            following = deleted(channel, keep_topic=keep_topic, now=self._clock())
            return self._channels.save(
                tx, channel, following, AuditedAction.DELETE, by=context.by
            ), False

        return self._channels.once(context, act)

    def close(self, name: str, context: ChangeContext, *, uid: str, force: bool) -> StoredResponse:
        """Close the channel to writers; idempotent.

        Without `force`, it is `closing` until its writers have ended and all records are read.
        """

        def act(tx: WriteTransaction) -> tuple[Channel, bool]:
            channel = hold_channel(tx, name, uid)
            context.precondition.check(etag(channel))
            present = usage_of_channel(tx, channel)
            following = closing(channel, present, force=force, now=self._clock())
            if following is not channel:
                # Wakes readers that wait for further writers.
                endpoints_store.revise(tx, [channel.uid])
            return self._channels.save(
                tx, channel, following, AuditedAction.CLOSE, by=context.by
            ), False

        return self._channels.once(context, act)
