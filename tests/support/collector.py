"""A trace collector that accepts OTLP over HTTP from any process."""

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


@dataclass(frozen=True, kw_only=True)
class Collected:
    """An exported span."""

    service: str
    trace: str
    id: str
    parent: str
    name: str
    attributes: dict[str, Any]


@dataclass
class Collector:
    """The spans received so far, and the endpoint for exporters."""

    endpoint: str = ""
    spans: list[Collected] = field(default_factory=list)
    arrived: threading.Condition = field(default_factory=threading.Condition)

    def until(self, *names: str, timeout_s: float = 60) -> list[Collected]:
        """Wait for spans of all of these names, and return all spans."""
        with self.arrived:
            assert self.arrived.wait_for(
                lambda: set(names) <= {each.name for each in self.spans}, timeout_s
            ), f"{names} are not all in {sorted({each.name for each in self.spans})}"
            return list(self.spans)

    def path(self, span: Collected) -> tuple[str, ...]:
        """Return the names of a span's known ancestors, outermost first, and its own."""
        names, by_id = [span.name], {each.id: each for each in self.spans}
        while (parent := by_id.get(span.parent)) is not None:
            names.insert(0, parent.name)
            span = parent
        return tuple(names)


@contextmanager
def collecting() -> Iterator[Collector]:
    """Run a collector while the block runs."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            response = ExportTraceServiceResponse().SerializeToString()
            with collector.arrived:
                collector.spans += _spans(ExportTraceServiceRequest.FromString(body))
                collector.arrived.notify_all()
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(response)))
            self.end_headers()
            self.wfile.write(response)

        def log_message(self, *_: Any) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _spans(request: Any) -> Iterator[Collected]:
    for resource in request.resource_spans:
        service = _attributes(resource.resource.attributes)["service.name"]
        for scope in resource.scope_spans:
            for each in scope.spans:
                yield Collected(
                    service=service,
                    trace=each.trace_id.hex(),
                    id=each.span_id.hex(),
                    parent=each.parent_span_id.hex(),
                    name=each.name,
                    attributes=_attributes(each.attributes),
                )


def _attributes(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}
