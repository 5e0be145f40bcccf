"""What the state does not allow."""

from sluiceway_gateway.domain.errors.root import SluicewayGatewayError


class Conflict(SluicewayGatewayError):
    """The request is well-formed, but the state does not allow it."""

    code = "conflict"
    title = "The channel's state does not allow this"


class UidMismatch(Conflict):
    """The name belongs to another incarnation of the channel."""

    code = "uid_mismatch"
    title = "Another channel has this name now"


class PartitionsShrink(Conflict):
    """Partitions are never taken away: their records would be lost."""

    code = "partitions_shrink"
    title = "A channel never loses partitions"


class ChannelPinned(Conflict):
    """The channel's number of partitions is pinned."""

    code = "channel_pinned"
    title = "The channel's partitions are pinned"


class ImmutableField(Conflict):
    """The field is fixed at creation."""

    code = "immutable_field"
    title = "The field cannot be changed"


class SchemaIncompatible(Conflict):
    """The schema does not go with those that the channel keeps; one violation a broken rule."""

    code = "schema_incompatible"
    title = "The schema is not compatible"


class TooManySchemas(Conflict):
    """The channel keeps as many versions of its schema as one may."""

    code = "too_many_schemas"
    title = "The channel keeps too many schemas"


class ChannelAdopted(Conflict):
    """The channel's topic was there before it, and is left as it is."""

    code = "channel_adopted"
    title = "The channel's topic is adopted"


class ChannelClosed(Conflict):
    """Nobody writes to the channel any more."""

    code = "channel_closed"
    title = "The channel is closed"


class ChannelDeleting(Conflict):
    """The channel is on its way out; its name is free when it is gone."""

    code = "channel_deleting"
    title = "The channel is being deleted"
    retriable = True


class ChannelNotReady(Conflict):
    """The channel has no usable topic at the moment."""

    code = "channel_not_ready"
    title = "The channel is not ready"
    retriable = True


class EndpointsLive(Conflict):
    """Writers or readers of the channel are at work."""

    code = "endpoints_live"
    title = "The channel is in use"
    retriable = True


class UnreadData(Conflict):
    """Groups have not read all of the channel."""

    code = "unread_data"
    title = "The channel holds records that were not read"
    retriable = True


class TopicNotFound(Conflict):
    """There is no topic to adopt."""

    code = "topic_not_found"
    title = "No such topic"


class TopicTaken(Conflict):
    """The topic to adopt belongs to another channel."""

    code = "topic_taken"
    title = "The topic belongs to another channel"


class ReplicationExceedsBrokers(Conflict):
    """More replicas are asked for than Kafka has brokers."""

    code = "replication_exceeds_brokers"
    title = "Not enough brokers"


class IdempotencyKeyReused(Conflict):
    """The idempotency key was used for another request."""

    code = "idempotency_key_reused"
    title = "The idempotency key belongs to another request"


class ConcurrentChange(Conflict):
    """Somebody else changed the channel at the same time."""

    code = "concurrent_change"
    title = "The channel was changed at the same time"
    retriable = True
