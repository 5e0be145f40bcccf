"""What the facades and Spark use of the core, besides the public names of `sluiceway`.

The packages `confluent`, `broker`, `pypz` and `spark` import nothing else of it, so what is not
listed here can change without a look at them. This module is for the packages of this distribution:
it may change with each version. Programs use the public names.

Names are documented by the modules that define them; docs/architecture.md tells what each group is
for.
"""

from sluiceway import tracing
from sluiceway.api.arguments import group_path
from sluiceway.api.auth import Token
from sluiceway.api.channels import Control
from sluiceway.api.endpoints import (
    AttachResult,
    EndpointEnd,
    EndpointReport,
    HeartbeatReply,
    KeptEndpoint,
    PositionAdvance,
    Role,
    SessionReport,
    SparkJob,
    SyncResult,
    TaskProgress,
)
from sluiceway.api.groups import Membership
from sluiceway.api.ledger import Batch, BatchRequest, Interval, KnownCommit
from sluiceway.api.models import ChannelResource, ChannelSpec
from sluiceway.api.schema_registry import SchemaRegistry
from sluiceway.api.transport import Transport
from sluiceway.codecs import Corrupt
from sluiceway.codecs.decoder import corrupt_error, decoder_for
from sluiceway.codecs.physical import BatchTransform
from sluiceway.concurrency import FairLock, Process, this_process
from sluiceway.endpoint.assignment import PartitionAssignment, sync
from sluiceway.endpoint.attached import AttachedEndpoint, EndpointMetrics, EndpointState
from sluiceway.endpoint.channel_endpoint import is_success
from sluiceway.endpoint.committer import OffsetCommitter
from sluiceway.endpoint.heartbeat import HeartbeatSession
from sluiceway.endpoint.stop_condition import LostWriterPolicy, OnLostWriter, writers_outcome
from sluiceway.errors import clear_tracebacks
from sluiceway.kafka.accumulator import RecordAccumulator
from sluiceway.kafka.config import (
    CONNECTION,
    CONSUMER,
    PRODUCER,
    MaskedProperties,
    admin_config,
    producer_config,
    refuse_unlisted,
)
from sluiceway.kafka.consumer import (
    FetchedMessages,
    IdleTimeout,
    PartitionStream,
    Watermarks,
)
from sluiceway.kafka.errors import (
    create_client,
    is_gone,
    is_unavailable,
    run_callbacks,
    translate_error,
)
from sluiceway.kafka.io_thread import SHARED_CONSUMERS, Consumers
from sluiceway.kafka.keys import KeyField, deletes_of
from sluiceway.kafka.partitioner import partition_of, partitioning
from sluiceway.kafka.producer import IdempotentProducer
from sluiceway.kafka.topic import TopicIdentity
from sluiceway.ledger.committed_stream import CommittedStream, open_stream
from sluiceway.ledger.intervals import DeliveredIntervals, WrittenRecords
from sluiceway.ledger.leases import LeaseKeeper
from sluiceway.ledger.visibility import Visibility, fixed_visibility, visibility_of
from sluiceway.ledger.write_batch import BatchSequence, BatchState, WriteBatch
from sluiceway.ledger.writer_endpoint import WriterEndpoint
from sluiceway.records import to_batches
from sluiceway.records.to_python import gc_paused
from sluiceway.runtime.steps import StepRunner, Steps
from sluiceway.runtime.threads import Background, Signal, call
from sluiceway.runtime.timers import Timer
from sluiceway.schema import types
from sluiceway.schema.arrow import arrow_type, union_branches
from sluiceway.writer import PreparedRecords

# Requests to the gateway, and what they return.
__all__ = ["Control", "Token", "Transport", "group_path"]
__all__ += ["ChannelResource", "ChannelSpec", "Membership", "PositionAdvance", "Role"]
__all__ += ["AttachResult", "EndpointEnd", "EndpointReport", "SyncResult"]
# Attached endpoints: heartbeats, commits, assigned partitions, and the end of writers.
__all__ += ["AttachedEndpoint", "EndpointMetrics", "EndpointState", "OffsetCommitter"]
__all__ += ["PartitionAssignment", "sync"]
__all__ += ["LostWriterPolicy", "OnLostWriter", "is_success", "writers_outcome"]
# The session of a Spark application, which keeps the endpoints of its jobs alive.
__all__ += ["HeartbeatReply", "HeartbeatSession", "KeptEndpoint"]
__all__ += ["SessionReport", "SparkJob", "TaskProgress"]
# Kafka: properties, clients, errors, topics, partitions of records.
__all__ += ["CONNECTION", "CONSUMER", "PRODUCER", "MaskedProperties", "refuse_unlisted"]
__all__ += ["admin_config", "create_client", "producer_config", "run_callbacks"]
__all__ += ["clear_tracebacks", "is_gone", "is_unavailable", "translate_error"]
__all__ += ["TopicIdentity", "partition_of", "partitioning"]
# Reading: messages, and the committed ones of exactly-once channels.
__all__ += ["SHARED_CONSUMERS", "Consumers", "FetchedMessages", "IdleTimeout"]
__all__ += ["PartitionStream", "Watermarks"]
__all__ += ["CommittedStream", "Visibility", "fixed_visibility", "open_stream", "visibility_of"]
__all__ += ["Corrupt", "Interval", "KnownCommit", "corrupt_error", "decoder_for", "gc_paused"]
__all__ += ["KeyField", "SchemaRegistry", "deletes_of"]
# Writing: messages, and the batches of exactly-once channels.
__all__ += ["IdempotentProducer", "PreparedRecords", "RecordAccumulator", "to_batches"]
__all__ += ["DeliveredIntervals", "WriterEndpoint", "WrittenRecords"]
__all__ += ["Batch", "BatchRequest", "BatchSequence", "BatchState", "LeaseKeeper", "WriteBatch"]
# Types of fields.
__all__ += ["BatchTransform", "arrow_type", "types", "union_branches"]
# Threads, processes and traces.
__all__ += ["Background", "FairLock", "Process", "Signal", "StepRunner", "Steps", "Timer"]
__all__ += ["call", "this_process", "tracing"]
