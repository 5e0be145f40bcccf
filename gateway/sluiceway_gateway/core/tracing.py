"""Tracing: spans of statements and of batches of requests; ids of traces for the log.

All spans are children of a request's span: background loops have none.
"""

import re
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache
from typing import Any

from opentelemetry import context as otel_context
from opentelemetry import propagate, trace

from sluiceway import __version__
from sluiceway.tracing import ActiveSpan, child_span

__all__ = ["add_trace_ids", "child_span", "continued", "current", "joined", "statement"]

_TRACER = trace.get_tracer("sluiceway_gateway", __version__)
_MAX_TEXT = 4_000
_TARGET = re.compile(
    r"\s*(?:(SELECT)\b.*?\bFROM|(INSERT) INTO|(UPDATE)|(DELETE) FROM)\s+\"?(\w+)", re.DOTALL
)


def current() -> trace.Span:
    """Return the span of the running request."""
    return trace.get_current_span()


def statement(system: str, text: str, *, sets: int = 1) -> AbstractContextManager[ActiveSpan]:
    """Start the span of a statement, executed once, or for `sets` sets of parameters.

    The span has the text with placeholders, and no parameters.
    """
    summary, attributes = _described(system, text)
    if sets > 1:
        attributes = {**attributes, "db.operation.batch.size": sets}
    return child_span(summary, attributes)


@lru_cache(maxsize=512)
def _described(system: str, text: str) -> tuple[str, Mapping[str, str | int]]:
    """Return the name of a statement's span (operation and table), and its attributes."""
    match = _TARGET.match(text)
    if match is None:
        summary = operation = text.split(maxsplit=1)[0].upper()
    else:
        *operations, table = match.groups()
        operation = next(filter(None, operations))
        summary = f"{operation} {table}"
    return summary, {
        "db.system.name": system,
        "db.operation.name": operation,
        "db.query.summary": summary,
        "db.query.text": text[:_MAX_TEXT],
    }


@contextmanager
def joined(name: str, requests: Sequence[trace.Span]) -> Iterator[None]:
    """Trace the block as common work for several requests.

    Its span is in the trace of the first request, with links to and from the others.
    """
    recording = [request for request in requests if request.is_recording()]
    if not recording:
        yield
        return
    first, *others = recording
    links = [trace.Link(other.get_span_context()) for other in others]
    with (
        trace.use_span(first, record_exception=False, set_status_on_exception=False),
        _TRACER.start_as_current_span(
            name, links=links, attributes={"sluiceway.requests": len(requests)}
        ) as span,
    ):
        for other in others:
            other.add_link(span.get_span_context())
        yield


@contextmanager
def continued(headers: Sequence[tuple[bytes, bytes]]) -> Iterator[None]:
    """Continue a request's W3C trace in the block, if no SDK records the request.

    A context that is malformed, or given twice, is ignored.
    """
    traceparents = [value for name, value in headers if name == b"traceparent"]
    if len(traceparents) != 1 or current().get_span_context().is_valid:
        yield
        return
    token = otel_context.attach(
        propagate.extract({"traceparent": traceparents[0].decode("latin-1")})
    )
    try:
        yield
    finally:
        otel_context.detach(token)


def add_trace_ids(
    _logger: Any, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Add the ids of the current span to a log entry."""
    context = current().get_span_context()
    if context.is_valid:
        event["trace_id"] = trace.format_trace_id(context.trace_id)
        event["span_id"] = trace.format_span_id(context.span_id)
    return event
