"""The way in: a gateway and its channels."""

import os
import time
import warnings
from collections.abc import Iterator, Mapping
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

from sluiceway.channel import Channel, checked_idle, idle_ms
from sluiceway.errors import ChannelNotFound, Conflict, OptionError
from sluiceway.rest.auth import Token
from sluiceway.rest.channels import MIN_INTERVAL_S, Control, watch_summaries
from sluiceway.rest.models import ChannelResource, Heartbeat, Retention, require_readable
from sluiceway.rest.status import ChannelSummary
from sluiceway.rest.transport import Transport
from sluiceway.schema import Schema

__all__ = ["Gateway"]


class Gateway:
    """A gateway; nothing is sent before the first call.

    `url`, `token` and `ca` (a file of certificates to trust) default to SLUICEWAY_URL (and that
    to http://127.0.0.1:8900), SLUICEWAY_TOKEN or the content of SLUICEWAY_TOKEN_FILE, and
    SLUICEWAY_CA_FILE. `listener` names the way to Kafka where the gateway knows several; it
    defaults to SLUICEWAY_LISTENER, and that to the gateway's choice. A call is repeated for
    `timeout_s` while the gateway does not answer. Writers and readers bear it for
    `control_grace_s` that it is away, before what cannot be done without it fails.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        token: str | None = None,
        ca: str | None = None,
        listener: str | None = None,
        timeout_s: float = 30.0,
        control_grace_s: float = 60.0,
    ) -> None:
        given = Token.of(token)
        del token
        if not isinstance(control_grace_s, int | float) or not 0 < control_grace_s <= 86_400:
            raise OptionError(f"control_grace_s is {control_grace_s!r}; it takes seconds to 86400")
        transport = Transport(url, token=given, ca=ca, timeout_s=timeout_s)
        self.url = transport.url
        self._control = Control(
            transport,
            listener=listener or os.environ.get("SLUICEWAY_LISTENER"),
            grace_s=control_grace_s,
        )

    def channel(
        self,
        name: str,
        schema: object = None,
        *,
        partitions: int | None = None,
        format: str | None = None,  # noqa: A002 - the wire's word
        compatibility: str | None = None,
        topic: str | None = None,
        pinned: bool | None = None,
        replication: int | None = None,
        labels: Mapping[str, str] | None = None,
        retention: Retention | None = None,
        heartbeat: Heartbeat | None = None,
        mirrored: bool | None = None,
        idle: timedelta | None = None,
        config: Mapping[str, str] | None = None,
        wait_s: float = 60.0,
    ) -> Channel:
        """Open the channel, made first if it is absent, and wait until it is ready.

        `schema` is a dataclass, a pyarrow.Schema, Avro JSON or a Schema. Where a channel that is
        there keeps it as one of its versions, writers and readers use that one; else it must be
        able to read records of all versions, or SchemaMismatch is raised, and serves readers
        alone until `Channel.update` registers it. Where the channel differs in what else is
        given, a warning says so, and nothing is changed. A channel that is absent needs a schema,
        or `format="bytes"`, or ChannelNotFound is raised; left out, the rest is: 1 partition,
        format avro, not pinned, compatibility backward, the broker's replication and retention, a
        heartbeat of 2 s, and not `mirrored`: the positions of its groups are not written to Kafka's
        own group offsets.

        `idle` lets a channel that nobody has used for so long (a minute at least) be closed, and
        after as long again be removed with its records; left out, it stays.

        `topic` names a topic of Kafka's that a new channel adopts: it is never deleted and never
        changed. One that another channel had before brings its schemas with it. Raises Conflict
        `topic_not_found` or `topic_taken`, and `immutable_field` where the channel is there with
        another topic.

        Raises GatewayError, SchemaError, ChannelNotReady, and SluicewayTimeout after `wait_s`.
        """
        wanted = None if schema is None else Schema.of(schema)
        given: dict[str, Any] = {
            "partitions": partitions,
            "format": format,
            "compatibility": compatibility,
            "pinned": pinned,
            "replication": replication,
            "retention": retention,
            "heartbeat": heartbeat,
            "mirrored": mirrored,
            "idle": None if idle is None else checked_idle(idle),
            "config": None if config is None else dict(config),
        }
        given = {field: value for field, value in given.items() if value is not None}
        deadline_s = time.monotonic() + wait_s
        while True:
            resource = self._opened(name, wanted, given, labels, topic)
            channel = Channel(self._control, resource, wanted)
            if resource.status.phase != "deleting" or not _can_make(wanted, format, topic):
                break
            # The name is free again when the channel before is gone.
            channel.wait_until_gone(deadline_s - time.monotonic())
        if wanted is not None and Schema.parse(resource.schema_definition) != wanted:
            require_readable(name, wanted, channel.schemas())
        _require_topic(resource, topic)
        self._warn_of_differences(resource, given, labels)
        return channel.wait_until_ready(deadline_s - time.monotonic())

    def channels(self, selector: str | None = None) -> Iterator[Channel]:
        """Give the channels that the token may see, by name.

        `selector` chooses by labels, in Kubernetes' form: `team=fares,stage!=test,owner`.
        """
        for resource in self._control.channels(selector):
            yield Channel(self._control, resource)

    def report(self) -> tuple[ChannelSummary, ...]:
        """Ask how all channels stand that the token may see: a line each, by name.

        Who looks leaves no trace.
        """
        return tuple(self._control.statuses())

    def watch(self, *, every_s: float = MIN_INTERVAL_S) -> Iterator[tuple[ChannelSummary, ...]]:
        """Give what `report` gives: now, and whenever a line is another, at most every `every_s`.

        There is no end to it; who watches leaves no trace, and stops by leaving the loop. Raises
        GatewayUnavailable when the gateway does not answer in time: watch again then.
        """
        return watch_summaries(self._control, every_s=every_s, sleep=time.sleep)

    def close(self) -> None:
        """Close the connections to the gateway; later calls raise EndpointClosed.

        Writers and readers have their own for what they report and commit; readers need these
        when they meet a schema that came after them.
        """
        self._control.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        # Shown, too, where it could not be made.
        return f"<Gateway {getattr(self, 'url', None)}>"

    def _opened(
        self,
        name: str,
        schema: Schema | None,
        given: Mapping[str, Any],
        labels: Mapping[str, str] | None,
        topic: str | None,
    ) -> ChannelResource:
        try:
            return self._control.channel(name)
        except ChannelNotFound as error:
            if not _can_make(schema, given.get("format"), topic):
                raise ChannelNotFound(
                    f"there is no channel {name!r}; give a schema to make it, or format='bytes'",
                    status=404,
                ) from error
        spec = dict(given)
        if schema is not None:
            spec["schema"] = schema.definition
        if topic is not None:
            spec["topic"] = {"name": topic}
        for field in spec.keys() & {"retention", "heartbeat"}:
            spec[field] = spec[field].to_json()
        if "idle" in spec:
            spec["idle_ms"] = idle_ms(spec.pop("idle"))
        try:
            return self._control.create(name, spec=spec, labels=labels or {})
        except Conflict as error:
            if error.code != "precondition_failed":
                raise
        # Somebody else made it in between.
        return self._control.channel(name)

    def _warn_of_differences(
        self,
        resource: ChannelResource,
        given: Mapping[str, Any],
        labels: Mapping[str, str] | None,
    ) -> None:
        wanted = {**given, **({} if labels is None else {"labels": dict(labels)})}
        for field, value in wanted.items():
            present = getattr(resource, field)
            if present != value:
                warnings.warn(
                    f"the channel {resource.name!r} has {field}={present!r}, given was {value!r}; "
                    "it stays as it is: channel.update() changes what can be changed",
                    stacklevel=3,
                )


def _can_make(schema: Schema | None, format: str | None, topic: str | None) -> bool:  # noqa: A002
    """Whether a channel can be made with that; the gateway may know the schemas of a topic."""
    return schema is not None or topic is not None or format == "bytes"


def _require_topic(resource: ChannelResource, topic: str | None) -> None:
    present = resource.status.topic.name
    if topic not in (None, present):
        raise Conflict(
            f"the channel {resource.name!r} is there with the topic {present!r} and cannot have "
            f"{topic!r}: take another name for the channel, or leave the topic out",
            code="immutable_field",
        )
