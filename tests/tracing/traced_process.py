"""Run a job and a gateway in one process with an SDK, and print the spans and the log.

An SDK cannot be removed from a process, so tests do not set it up in their own.
"""

import argparse
import io
import json
import threading
from typing import Any

import httpx
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from gateways import serving
from sluiceway import Gateway
from sluiceway.errors import SluicewayError
from sluiceway_gateway.app import create_app
from sluiceway_gateway.core.logs import configure_logs
from sluiceway_gateway.core.request_batcher import Batcher
from sluiceway_gateway.core.settings import Settings

SCHEMA = {"type": "record", "name": "Landing", "fields": [{"name": "carrier", "type": "string"}]}
RECORDS = [{"carrier": f"a value of record {number}"} for number in range(100)]
TRACER = trace.get_tracer("job")


def run_job(url: str) -> None:
    """Write and read a channel in one trace, then cause errors in two others."""
    with Gateway(url) as gateway:
        with TRACER.start_as_current_span("job"):
            channel = gateway.channel("landings", SCHEMA, delivery="exactly_once")
            with channel.writer(group="writers", commit_every_s=3600) as writer:
                writer.write(RECORDS)
                writer.flush()
                writer.write({"carrier": "a value alone"})
                writer.flush()
            with channel.reader(group="readers", until="finished") as reader:
                while not reader.finished:
                    reader.read(1000)
                reader.commit()
        with TRACER.start_as_current_span("refused"):
            try:
                gateway.channel("absent")
            except SluicewayError as error:
                print(type(error).__name__)
        writer = channel.writer(group="others")
        with TRACER.start_as_current_span("failed"):
            try:
                writer.write([{"carrier": "a value of record"}] * 99 + [{"carrier": 7}])
            except SluicewayError as error:
                print(type(error).__name__)
        writer.abort(ValueError())


def run_batch() -> None:
    """Submit requests of three traces: two wait for the first one, and share a batch."""
    begun, released = threading.Event(), threading.Event()

    def work(requests: Any) -> Any:
        with TRACER.start_as_current_span(f"work {'+'.join(requests)}"):
            begun.set()
            assert released.wait(60)
        return requests

    batcher = Batcher[str, str](work, str, name="test", threads=1)
    spans, responses = [], []
    for name in ("first", "second", "third"):
        span = TRACER.start_span(name)
        spans.append(span)
        with trace.use_span(span):
            responses.append(batcher.submit(name))
        assert begun.wait(60)
    released.set()
    assert [response.result(60) for response in responses] == ["first", "second", "third"]
    for span in spans:
        span.end()
    batcher.close()


def as_json(span: Any) -> dict[str, Any]:
    """Return the properties of a span that tests check."""
    return {
        "id": span.context.span_id,
        "trace": span.context.trace_id,
        "parent": None if span.parent is None else span.parent.span_id,
        "name": span.name,
        "kind": span.kind.name,
        "scope": span.instrumentation_scope.name,
        "attributes": dict(span.attributes),
        "links": [link.context.span_id for link in span.links],
        "status": span.status.status_code.name,
        "events": [event.name for event in span.events],
        "text": span.to_json(),
    }


def main() -> None:
    """Run everything, and print one JSON document after the output of the job."""
    parser = argparse.ArgumentParser()
    parser.add_argument("database_url")
    parser.add_argument("kafka")
    arguments = parser.parse_args()
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    log = io.StringIO()
    configure_logs(level="debug", format="json", stream=log)
    settings = Settings(
        database_url=arguments.database_url, kafka_bootstrap_servers=arguments.kafka
    )
    app = create_app(settings)
    with serving(app) as url:
        for path in ("livez", "metrics"):
            httpx.get(f"{url}/{path}", timeout=60, trust_env=False)
        run_job(url)
    run_batch()
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    spans = [as_json(span) for span in exporter.get_finished_spans()]
    print(json.dumps({"spans": spans, "log": lines}))


if __name__ == "__main__":
    main()
