"""Tracing: spans of OpenTelemetry, the W3C trace context of requests, and request ids.

Without OpenTelemetry's API there are no spans, and TRACEPARENT gives the context.
"""

import itertools
import logging
import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Any, Final

from sluiceway import __version__, install_command

try:
    from opentelemetry import context as otel_context
    from opentelemetry import propagate, trace
except ImportError:
    INSTALLED = False
else:
    INSTALLED = True
    _TRACER = trace.get_tracer("sluiceway", __version__)

__all__ = [
    "ActiveSpan",
    "carrier",
    "channel_span",
    "child_span",
    "configure",
    "continued",
    "request_ids",
    "span",
]

LOGGER = logging.getLogger(__name__)

_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-[!-~]*)?")
_TRACESTATE: Final = re.compile(r"[ -~]{1,1024}")


class ActiveSpan:
    """The span of a block; attributes are dropped if it is not recorded."""

    def __init__(self, recorded: Any = None) -> None:
        self._recorded = recorded

    def set(self, name: str, value: str | float) -> None:
        """Set an attribute."""
        if self._recorded is not None:
            self._recorded.set_attribute(name, value)

    def fail(self, kind: str) -> None:
        """Mark the span as failed, by an error of this type."""
        if self._recorded is not None:
            self._recorded.set_attribute("error.type", kind)
            self._recorded.set_status(trace.StatusCode.ERROR)


_NO_SPAN: Final[AbstractContextManager[ActiveSpan]] = nullcontext(ActiveSpan())


def span(
    name: str, attributes: Mapping[str, Any] | None = None, *, client: bool = False
) -> AbstractContextManager[ActiveSpan]:
    """Start a span for a block, a child of the current span or else of the environment's.

    `client`: the block waits for another process. For an exception the span records its type, but
    not its message, which may quote values of records.
    """
    if not INSTALLED:
        return _NO_SPAN
    parent = None
    if not trace.get_current_span().get_span_context().is_valid and (carrier := _environment()):
        parent = propagate.extract(carrier)
    started = _TRACER.start_span(
        name,
        parent,
        kind=trace.SpanKind.CLIENT if client else trace.SpanKind.INTERNAL,
        attributes=attributes,
    )
    # An unsampled span is valid too: it propagates the decision not to sample.
    return _active(started) if started.get_span_context().is_valid else _NO_SPAN


def child_span(
    name: str, attributes: Mapping[str, Any], *, client: bool = True
) -> AbstractContextManager[ActiveSpan]:
    """Start a span within another one; outside of a recorded trace there is none."""
    if not INSTALLED or not trace.get_current_span().is_recording():
        return _NO_SPAN
    return span(name, attributes, client=client)


def channel_span(
    operation: str,
    channel: str,
    *,
    kind: str | None = None,
    topic: str | None = None,
    group: str | None = None,
) -> AbstractContextManager[ActiveSpan]:
    """Start the span of an operation on a channel.

    `kind` is OpenTelemetry's type of the operation: `send`, `receive` or `settle`.
    """
    if not INSTALLED:
        return _NO_SPAN
    attributes = {
        "messaging.system": "kafka",
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
        "messaging.destination.name": topic,
        "messaging.consumer.group.name": group,
        "sluiceway.channel": channel,
    }
    span_attributes = {name: value for name, value in attributes.items() if value is not None}
    return span(f"{operation} {channel}", span_attributes, client=kind is not None)


@contextmanager
def _active(started: Any) -> Iterator[ActiveSpan]:
    active = ActiveSpan(started)
    with trace.use_span(
        started, end_on_exit=True, record_exception=False, set_status_on_exception=False
    ):
        try:
            yield active
        except Exception as error:
            active.fail(type(error).__qualname__)
            raise


def carrier() -> dict[str, str]:
    """Return the headers that continue the current trace, or else the environment's."""
    if INSTALLED and trace.get_current_span().get_span_context().is_valid:
        headers: dict[str, str] = {}
        propagate.inject(headers)
        return headers
    return _environment()


def _environment() -> dict[str, str]:
    """Return the trace context of this process's environment, if it is well-formed."""
    parent = os.environ.get("TRACEPARENT", "")
    if not _TRACEPARENT.fullmatch(parent):
        return {}
    state = os.environ.get("TRACESTATE", "")
    return {"traceparent": parent} | ({"tracestate": state} if _TRACESTATE.fullmatch(state) else {})


@contextmanager
def continued(headers: Mapping[str, str]) -> Iterator[None]:
    """Continue the trace of these headers in the block, if there is one."""
    if not INSTALLED or not headers:
        yield
        return
    token = otel_context.attach(propagate.extract(headers))
    try:
        yield
    finally:
        otel_context.detach(token)


def configure(service: str) -> Callable[[], object] | None:
    """Configure the SDK from OTEL_* variables, for processes without an application's code.

    Returns the function that exports the ended spans. Returns None if no variable names an
    exporter or an endpoint, if OTEL_SDK_DISABLED is true, or if the process has an SDK already.
    `service` is the default service name. A failure is logged and not raised.
    """
    names = _exporters()
    if not names:
        return None
    if not INSTALLED or find_spec("opentelemetry.sdk") is None:
        LOGGER.warning(
            "OTEL_* variables request traces, but OpenTelemetry's SDK is not installed: %s",
            install_command("otel"),
        )
        return None
    try:
        return _flush_of_new_provider(names, service)
    except Exception as error:
        # The SDK refuses the value of a variable, or an exporter lacks a package.
        LOGGER.warning("no traces are exported: %s: %s", type(error).__name__, error)
        return None


def _flush_of_new_provider(names: Sequence[str], service: str) -> Callable[[], object] | None:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    if isinstance(trace.get_tracer_provider(), TracerProvider):
        return None
    named = "OTEL_SERVICE_NAME" in os.environ or "service.name=" in os.environ.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )
    provider = TracerProvider(resource=Resource.create({} if named else {"service.name": service}))
    for name in names:
        for entry_point in entry_points(group="opentelemetry_traces_exporter", name=name):
            provider.add_span_processor(BatchSpanProcessor(entry_point.load()()))
            break
        else:
            LOGGER.warning("OpenTelemetry's exporter %r is not installed: it gets no traces", name)
    trace.set_tracer_provider(provider)
    flush: Callable[[], object] = provider.force_flush
    return flush


def _exporters() -> Sequence[str]:
    """Return the entry point names of the exporters in the environment."""
    variable = os.environ.get
    endpoints = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
    default = "otlp" if any(map(variable, endpoints)) else "none"
    if variable("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return ()
    protocol = (
        variable("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL")
        or variable("OTEL_EXPORTER_OTLP_PROTOCOL")
        or "http/protobuf"
    )
    named = (name.strip() for name in (variable("OTEL_TRACES_EXPORTER") or default).split(","))
    otlp = f"otlp_proto_{protocol.partition('/')[0]}"
    return [otlp if name == "otlp" else name for name in named if name not in ("", "none")]


def request_ids() -> Iterator[str]:
    """Return an endless iterator of unique ids for `X-Request-Id`: 32 hexadecimal digits.

    Threads may share it. A forked child must create its own, or it repeats its parent's ids.
    """
    # Random numbers are read once, not per id: in profiles of requests a read took 50 to 140 µs. An
    # id must be unique, but may be predictable.
    return map((secrets.token_hex(8) + "{:016x}").format, itertools.count(1))
