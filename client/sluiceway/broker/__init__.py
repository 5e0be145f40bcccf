"""pykafka's Broker on channels: the same calls, to a gateway and to Kafka.

docs/coming-from.md lists every call, and the deliberate differences.
"""

from sluiceway.broker import exceptions
from sluiceway.broker.admin import CreateTopicRequest
from sluiceway.broker.broker import Broker
from sluiceway.broker.connection import SslConfig
from sluiceway.broker.requests import (
    CompressionType,
    Message,
    MessageSet,
    OffsetType,
    PartitionFetchRequest,
    PartitionOffsetCommitRequest,
    PartitionOffsetFetchRequest,
    PartitionOffsetRequest,
    ProduceRequest,
)
from sluiceway.broker.responses import (
    BrokerMetadata,
    FetchPartitionResponse,
    FetchResponse,
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupResponse,
    ListOffsetResponse,
    MemberAssignment,
    MetadataResponse,
    OffsetCommitPartitionResponse,
    OffsetCommitResponse,
    OffsetFetchPartitionResponse,
    OffsetFetchResponse,
    OffsetPartitionResponse,
    PartitionMetadata,
    ProducePartitionResponse,
    ProduceResponse,
    SyncGroupResponse,
    TopicMetadata,
)

__all__ = [
    "Broker",
    "BrokerMetadata",
    "CompressionType",
    "CreateTopicRequest",
    "FetchPartitionResponse",
    "FetchResponse",
    "HeartbeatResponse",
    "JoinGroupResponse",
    "LeaveGroupResponse",
    "ListOffsetResponse",
    "MemberAssignment",
    "Message",
    "MessageSet",
    "MetadataResponse",
    "OffsetCommitPartitionResponse",
    "OffsetCommitResponse",
    "OffsetFetchPartitionResponse",
    "OffsetFetchResponse",
    "OffsetPartitionResponse",
    "OffsetType",
    "PartitionFetchRequest",
    "PartitionMetadata",
    "PartitionOffsetCommitRequest",
    "PartitionOffsetFetchRequest",
    "PartitionOffsetRequest",
    "ProducePartitionResponse",
    "ProduceRequest",
    "ProduceResponse",
    "SslConfig",
    "SyncGroupResponse",
    "TopicMetadata",
    "exceptions",
]
