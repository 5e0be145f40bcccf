"""What requests may say about a channel."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from sluiceway_gateway.channels.change import UNSET, Change, Unset
from sluiceway_gateway.channels.model import (
    MAX_BEAT_MS,
    MAX_IDLE_MS,
    MAX_PARTITIONS,
    MAX_PATIENCE_MS,
    MIN_BEAT_MS,
    MIN_IDLE_MS,
    Compatibility,
    Format,
)
from sluiceway_gateway.channels.wire import Asked, Uid
from sluiceway_gateway.domain.label import MAX_LABELS, check_labels
from sluiceway_gateway.domain.name import TOPIC_PATTERN, check_topic
from sluiceway_gateway.http.params import INT64_MAX

MAX_SETTINGS = 20
"""Of a topic: more than a channel may set, and few enough to name all that are refused."""

Labels = Annotated[dict[str, str], Field(max_length=MAX_LABELS), AfterValidator(check_labels)]


class MetadataPut(Asked):
    """Whom the request means, and labels."""

    uid: Uid | None = Field(default=None, description="Means this incarnation and no other")
    labels: Labels = Field(default_factory=dict, description="Replaces all labels")


class RetentionPut(Asked):
    """How long records are kept; null leaves it to the broker, -1 is for ever."""

    ms: int | None = Field(default=None, ge=-1, le=INT64_MAX)
    bytes: int | None = Field(default=None, ge=-1, le=INT64_MAX, description="By partition")


class BeatPut(Asked):
    """How often endpoints beat, and after how long without one is lost; three beats at least."""

    interval_ms: int = Field(default=2_000, ge=MIN_BEAT_MS, le=MAX_BEAT_MS)
    patience_ms: int = Field(default=120_000, ge=3 * MIN_BEAT_MS, le=MAX_PATIENCE_MS)


class TopicPut(Asked):
    """The topic that is adopted."""

    name: Annotated[str, AfterValidator(check_topic)] = Field(
        description="A topic that is in Kafka, and no other channel's",
        json_schema_extra={"pattern": TOPIC_PATTERN},
    )


class SpecPut(Asked):
    """What is wanted; a field that is left out keeps its value, or takes its default."""

    schema_: dict[str, Any] = Field(
        default_factory=dict,
        alias="schema",
        description="An Avro record schema; needed when the channel is made",
    )
    compatibility: Literal["none", "backward", "forward", "full"] = Field(
        default="backward", description="What a new version of the schema must be to all kept ones"
    )
    format: Literal["avro", "arrow", "bytes"] = "avro"
    partitions: int = Field(default=1, ge=1, le=MAX_PARTITIONS)
    pinned: bool = False
    replication: int | None = Field(
        default=None, ge=1, le=32767, description="null takes the broker's default"
    )
    retention: RetentionPut = Field(default_factory=RetentionPut)
    config: dict[str, str] = Field(
        default_factory=dict,
        max_length=MAX_SETTINGS,
        description="Further topic settings, by Kafka's names; replaces all",
    )
    beat: BeatPut = Field(default_factory=BeatPut)
    mirrored: bool = Field(
        default=False, description="Groups' positions are written to Kafka's own group offsets too"
    )
    idle_ms: int | None = Field(
        default=None,
        ge=MIN_IDLE_MS,
        le=MAX_IDLE_MS,
        description="When nobody has used it for so long it is closed, and after as long again "
        "removed with its records; null: never",
    )
    topic: TopicPut | None = Field(
        default=None,
        description="A topic to adopt when the channel is made: it is never deleted or changed; "
        "null has one made",
    )


class ClosePost(Asked):
    """The body of `POST /v1/channels/{name}/close`."""

    uid: Uid = Field(description="Means this incarnation and no other")
    force: bool = Field(default=False, description="Closed at once, whoever writes or reads")


class ChannelPut(Asked):
    """The body of `PUT /v1/channels/{name}`."""

    metadata: MetadataPut = Field(default_factory=MetadataPut)
    spec: SpecPut = Field(default_factory=SpecPut)

    @property
    def schema_given(self) -> dict[str, Any] | None:
        """The schema, if the request has one."""
        given = self.spec.given("schema_")
        return None if given is UNSET else given

    @property
    def adopts(self) -> bool:
        """Whether the request names a topic to adopt."""
        return self.spec.topic is not None

    def change(self, *, config: dict[str, str] | Unset) -> Change:
        """Return what is asked but for the schema, with the configuration in canonical form."""
        compatibility, format_ = self.spec.given("compatibility"), self.spec.given("format")
        return Change(
            labels=self.metadata.given("labels"),
            compatibility=UNSET if compatibility is UNSET else Compatibility(compatibility),
            format=UNSET if format_ is UNSET else Format(format_),
            partitions=self.spec.given("partitions"),
            pinned=self.spec.given("pinned"),
            replication=self.spec.given("replication"),
            retention_ms=self.spec.retention.given("ms"),
            retention_bytes=self.spec.retention.given("bytes"),
            config=config,
            interval_ms=self.spec.beat.given("interval_ms"),
            patience_ms=self.spec.beat.given("patience_ms"),
            mirrored=self.spec.given("mirrored"),
            idle_ms=self.spec.given("idle_ms"),
            topic=self.spec.topic.name if self.spec.topic else self.spec.given("topic"),
        )
