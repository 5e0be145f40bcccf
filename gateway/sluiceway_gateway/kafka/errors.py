"""Translation of Kafka's error codes: rejections and access failures."""

from collections.abc import Mapping

from confluent_kafka import KafkaError

from sluiceway_gateway.kafka.model import Cause, Rejection

#: Codes with a meaning of their own here. Every other code is `UNAVAILABLE` if Kafka calls it
#: retriable, and else `OTHER`.
CAUSES: Mapping[int, Cause] = {
    KafkaError.UNKNOWN_TOPIC_OR_PART: Cause.TOPIC_ABSENT,
    KafkaError.UNKNOWN_TOPIC_ID: Cause.TOPIC_ABSENT,
    KafkaError._UNKNOWN_TOPIC: Cause.TOPIC_ABSENT,  # noqa: SLF001 - librdkafka's public name
    KafkaError.TOPIC_ALREADY_EXISTS: Cause.TOPIC_EXISTS,
    KafkaError.TOPIC_EXCEPTION: Cause.INVALID_NAME,
    KafkaError.INVALID_PARTITIONS: Cause.INVALID_PARTITIONS,
    KafkaError.INVALID_REPLICATION_FACTOR: Cause.INVALID_REPLICATION,
    KafkaError.INVALID_REPLICA_ASSIGNMENT: Cause.INVALID_REPLICATION,
    KafkaError.INVALID_CONFIG: Cause.INVALID_CONFIG,
    KafkaError.POLICY_VIOLATION: Cause.DENIED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED: Cause.DENIED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: Cause.DENIED,
    KafkaError.TOPIC_DELETION_DISABLED: Cause.DENIED,
    KafkaError._TRANSPORT: Cause.UNAVAILABLE,  # noqa: SLF001
    KafkaError._ALL_BROKERS_DOWN: Cause.UNAVAILABLE,  # noqa: SLF001
    KafkaError._TIMED_OUT: Cause.UNAVAILABLE,  # noqa: SLF001
    KafkaError._TIMED_OUT_QUEUE: Cause.UNAVAILABLE,  # noqa: SLF001
    KafkaError._RESOLVE: Cause.UNAVAILABLE,  # noqa: SLF001
    KafkaError._AUTHENTICATION: Cause.UNAVAILABLE,  # noqa: SLF001
    KafkaError._SSL: Cause.UNAVAILABLE,  # noqa: SLF001
    KafkaError._WAIT_COORD: Cause.UNAVAILABLE,  # noqa: SLF001
    KafkaError._DESTROY: Cause.UNAVAILABLE,  # noqa: SLF001
    KafkaError._DESTROY_BROKER: Cause.UNAVAILABLE,  # noqa: SLF001
    KafkaError._INTR: Cause.UNAVAILABLE,  # noqa: SLF001
    KafkaError._ISR_INSUFF: Cause.UNAVAILABLE,  # noqa: SLF001
    KafkaError._MSG_TIMED_OUT: Cause.UNAVAILABLE,  # noqa: SLF001
    KafkaError._NODE_UPDATE: Cause.UNAVAILABLE,  # noqa: SLF001
    KafkaError._RETRY: Cause.UNAVAILABLE,  # noqa: SLF001
    KafkaError._UNKNOWN_BROKER: Cause.UNAVAILABLE,  # noqa: SLF001
    KafkaError._WAIT_CACHE: Cause.UNAVAILABLE,  # noqa: SLF001
    KafkaError.REQUEST_TIMED_OUT: Cause.UNAVAILABLE,
    KafkaError.NOT_CONTROLLER: Cause.UNAVAILABLE,
    KafkaError.BROKER_NOT_AVAILABLE: Cause.UNAVAILABLE,
    KafkaError.LEADER_NOT_AVAILABLE: Cause.UNAVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION: Cause.UNAVAILABLE,
    KafkaError.REPLICA_NOT_AVAILABLE: Cause.UNAVAILABLE,
    KafkaError.NETWORK_EXCEPTION: Cause.UNAVAILABLE,
    KafkaError.COORDINATOR_NOT_AVAILABLE: Cause.UNAVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS: Cause.UNAVAILABLE,
    KafkaError.NOT_COORDINATOR: Cause.UNAVAILABLE,
    KafkaError.REASSIGNMENT_IN_PROGRESS: Cause.UNAVAILABLE,
    KafkaError.THROTTLING_QUOTA_EXCEEDED: Cause.UNAVAILABLE,
    KafkaError.KAFKA_STORAGE_ERROR: Cause.UNAVAILABLE,
    KafkaError.SASL_AUTHENTICATION_FAILED: Cause.UNAVAILABLE,
    KafkaError.ELIGIBLE_LEADERS_NOT_AVAILABLE: Cause.UNAVAILABLE,
    KafkaError.FENCED_LEADER_EPOCH: Cause.UNAVAILABLE,
    KafkaError.LISTENER_NOT_FOUND: Cause.UNAVAILABLE,
    KafkaError.NOT_ENOUGH_REPLICAS: Cause.UNAVAILABLE,
    KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND: Cause.UNAVAILABLE,
    KafkaError.OFFSET_NOT_AVAILABLE: Cause.UNAVAILABLE,
    KafkaError.PREFERRED_LEADER_NOT_AVAILABLE: Cause.UNAVAILABLE,
    KafkaError.REBOOTSTRAP_REQUIRED: Cause.UNAVAILABLE,
    KafkaError.UNKNOWN_LEADER_EPOCH: Cause.UNAVAILABLE,
    KafkaError.UNSTABLE_OFFSET_COMMIT: Cause.UNAVAILABLE,
}


def rejection(error: KafkaError) -> Rejection:
    """Translate by code; the message keeps Kafka's words."""
    cause = CAUSES.get(error.code())
    if cause is None:
        cause = Cause.UNAVAILABLE if error.retriable() else Cause.OTHER
    return Rejection(cause=cause, message=error.str())
