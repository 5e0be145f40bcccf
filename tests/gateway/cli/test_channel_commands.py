import itertools
import json
import warnings
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import httpx
import pytest
from confluent_kafka import Producer

from processes import Run, Sluiceway, Terminal, process
from relay import Relay
from shared_kafka import SharedKafka
from sluiceway import Gateway, Heartbeat
from sluiceway.api.channels import Control
from sluiceway.api.ledger import BatchRequest
from sluiceway.api.transport import Transport

SCHEMA = {
    "type": "record",
    "name": "Departure",
    "fields": [{"name": "carrier", "type": "string"}, {"name": "delay", "type": "double"}],
}
_numbers = itertools.count(1)

Command = Callable[..., Run]


@pytest.fixture
def schema_file(tmp_path: Path) -> str:
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(SCHEMA))
    return str(path)


@pytest.fixture
def name() -> str:
    return f"cli-{next(_numbers)}"


def test_a_channel_is_created_listed_shown_and_deleted(
    command: Command, gateway_url: str, schema_file: str, name: str
) -> None:
    created = command(
        *("channels", "create", name, "--schema", schema_file, "--partitions", "2", "--pinned"),
        *("--format", "arrow", "--label", f"made={name}", "--label", "stage=test"),
        *("--config", "segment.ms=60000", "--retention-ms", "-1", "--mirrored"),
        *("--delivery", "exactly_once"),
    )
    created.succeeded()
    assert f"channel {name} is ready" in created.out

    shown = json.loads(command("channels", "show", name).out)
    assert shown == httpx.get(f"{gateway_url}/v1/channels/{name}", timeout=60).json()
    assert shown["metadata"]["labels"] == {"made": name, "stage": "test"}
    assert shown["spec"]["schema"]["name"] == "Departure"
    assert shown["spec"]["config"] == {"segment.ms": "60000"}
    assert shown["spec"]["retention"] == {"ms": -1, "bytes": None}
    assert (shown["spec"]["partitions"], shown["spec"]["pinned"]) == (2, True)
    assert shown["spec"]["mirrored"]
    assert shown["spec"]["delivery"] == "exactly_once"
    assert shown["status"]["phase"] == "ready"

    listed = command("channels", "list", "--selector", f"made={name}").out.splitlines()
    assert len(listed) == 2
    assert listed[1].split()[:5] == [name, "ready", "arrow", "exactly_once", "2"]
    (line,) = command("channels", "list", "-l", f"made={name}", "--json").out.splitlines()
    assert json.loads(line) == shown

    deleted = command("channels", "delete", name, "--yes")
    assert deleted.out == f"channel {name} is deleted\n"
    command("channels", "show", name).failed(f"no channel {name!r}")


def test_a_proto_file_is_a_schema(
    command: Command, gateway_url: str, tmp_path: Path, name: str
) -> None:
    path = tmp_path / "shop.proto"
    order = "message Order { int64 id = 1; optional string note = 4; }"
    path.write_text(f'syntax = "proto3"; package shop; message Other {{ int32 a = 1; }} {order}')
    create = ("channels", "create", name, "--format", "protobuf", "--schema", str(path))
    refused = command(*create)
    assert refused.status == 1
    assert "give the message of shop.proto that records are: shop.Other, shop.Order" in refused.err
    command(*create, "--message", "shop.Order").succeeded()
    path.write_text(path.read_text().replace("note = 4;", "note = 4; repeated bool flags = 9;"))
    command(
        "channels", "update", name, "--schema", str(path), "--message", "shop.Order"
    ).succeeded()
    with Gateway(gateway_url) as gateway:
        channel = gateway.channel(name)
        numbers = {f["name"]: f["protobuf"]["number"] for f in channel.schema.definition["fields"]}
        assert numbers == {"id": 1, "note": 4, "flags": 9}
        with channel.writer() as writer:
            writer.write({"id": 1, "note": None, "flags": [True]})
        with channel.reader(until="now") as reader:
            assert list(reader) == [{"id": 1, "note": None, "flags": [True]}]


def test_a_message_is_that_of_a_proto_file(command: Command, schema_file: str, name: str) -> None:
    run = command("channels", "create", name, "--schema", schema_file, "--message", "shop.Order")
    assert (run.status, "--message needs a .proto file" in run.err) == (2, True)


def test_a_channel_is_updated_closed_removed_and_its_topic_adopted(
    command: Command, schema_file: str, tmp_path: Path, name: str
) -> None:
    command("channels", "create", name, "--schema", schema_file, "--compatibility", "full")
    later = tmp_path / "later.json"
    gate = {"name": "gate", "type": "string", "default": ""}
    later.write_text(json.dumps({**SCHEMA, "fields": [*SCHEMA["fields"], gate]}))
    updated = command("channels", "update", name, "--schema", str(later), "--mirrored")
    assert updated.out == f"channel {name} is at generation 2\n"
    lines = command("channels", "schemas", name).out.splitlines()
    assert [line.split()[0] for line in lines] == ["VERSION", "1", "2"]
    assert lines[2].endswith("carrier, delay, gate")
    one, two = command("channels", "schemas", name, "--json").out.splitlines()
    assert json.loads(one)["definition"]["fields"] == SCHEMA["fields"]
    assert json.loads(two)["version"] == 2

    assert command("channels", "close", name, "-y").out == f"channel {name} is closed\n"
    shown = json.loads(command("channels", "show", name).out)
    assert (shown["status"]["phase"], shown["spec"]["compatibility"]) == ("closed", "full")
    assert shown["spec"]["mirrored"]
    topic = shown["status"]["topic"]["name"]
    assert f"--topic {topic}" in command("channels", "forget", name, "-y").out
    command("channels", "show", name).failed(f"no channel {name!r}")
    adopted = command("channels", "create", name, "--topic", topic)
    assert adopted.out == f"channel {name} is ready, its topic is {topic}\n"
    shown = json.loads(command("channels", "show", name).out)
    assert shown["spec"]["topic"] == {"name": topic}
    assert len(shown["spec"]["schema"]["fields"]) == 3


@pytest.mark.parametrize(
    ("verb", "words"), [("close", "nothing was closed"), ("forget", "nothing was forgotten")]
)
def test_irreversible_commands_require_confirmation(
    command: Command, schema_file: str, name: str, verb: str, words: str
) -> None:
    command("channels", "create", name, "--schema", schema_file)
    declined = command("channels", verb, name, stdin=Terminal("n"))
    assert (declined.status, words in declined.err) == (1, True)
    assert json.loads(command("channels", "show", name).out)["status"]["phase"] == "ready"


def test_a_channel_needs_a_schema_or_a_topic(command: Command, name: str) -> None:
    run = command("channels", "create", name)
    assert (run.status, "--schema" in run.err) == (2, True)


def test_a_schema_does_not_control_the_terminal(
    command: Command, tmp_path: Path, name: str
) -> None:
    file = tmp_path / "schema.json"
    # An 8-bit CSI, which clears the screen.
    field = {"name": "a", "type": "string", "default": "\x9b2J é"}
    file.write_text(json.dumps(SCHEMA | {"fields": [field]}))
    command("channels", "create", name, "--schema", str(file)).succeeded()
    listed = command("channels", "list", "--json")
    exported = command("export", name, "--format", "json")
    for shown in (command("channels", "show", name).out, listed.out, exported.out):
        assert "\x9b" not in shown
        assert r"\u009b2J é" in shown


def test_a_schema_that_is_not_utf8_is_refused(command: Command, tmp_path: Path, name: str) -> None:
    file = tmp_path / "schema.json"
    file.write_bytes(json.dumps(SCHEMA).encode("utf-16"))
    command("channels", "create", name, "--schema", str(file)).failed("not UTF-8", status=2)


def test_creating_an_existing_channel_changes_nothing_and_reports_differences(
    command: Command, schema_file: str, name: str
) -> None:
    create = ("channels", "create", name, "--schema", schema_file)
    command(*create, "--partitions", "2")
    again = command(*create, "--partitions", "3")
    assert again.status == 0
    assert "has partitions=2, not 3 as given" in again.err
    assert "an update changes it: `sluiceway channels update" in again.err


def test_warnings_of_libraries_are_no_differences(
    sluiceway: Sluiceway, gateway_url: str, schema_file: str, name: str
) -> None:
    def warn() -> None:
        warnings.warn("it is old", DeprecationWarning, stacklevel=1)

    with closing(Relay(int(gateway_url.rpartition(":")[2]))) as relay:
        relay.call_at(b"PUT ", warn)
        relay.sent[b"PUT "] = 0
        sluiceway("channels", "create", name, "--schema", schema_file, url=relay.url).succeeded()
        assert relay.sent[b"PUT "]


def test_an_update_reports_a_field_that_may_be_renamed_in_one_line(
    command: Command, tmp_path: Path, name: str
) -> None:
    def schema_with(field: str) -> str:
        fields = [{"name": field, "type": ["null", "long"], "default": None}]
        path = tmp_path / f"{field}.json"
        path.write_text(json.dumps(SCHEMA | {"fields": fields}))
        return str(path)

    command("channels", "create", name, "--schema", schema_with("a")).succeeded()
    run = command("channels", "update", name, "--schema", schema_with("b"))
    assert (run.status, run.out) == (0, f"channel {name} is at generation 2\n")
    (line,) = run.errors.splitlines()
    assert line.startswith(f"sluiceway: the channel {name!r}: field 'b' is new")
    assert 'add "aliases": ["a"] to it' in line


def test_delete_asks_for_confirmation(command: Command, schema_file: str, name: str) -> None:
    command("channels", "create", name, "--schema", schema_file)
    declined = command("channels", "delete", name, stdin=Terminal("n"))
    assert (declined.status, "nothing was deleted" in declined.err) == (1, True)
    assert command("channels", "show", name).status == 0
    assert command("channels", "delete", name, stdin=Terminal("y")).status == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("create", "sluiceway.x", "--schema", "@"), "reserved"),
        (("create", "one", "--schema", "@", "--partitions", "0"), "partitions"),
        (("create", "one", "--schema", "@", "--replication", "9"), "at most 1"),
        (("create", "one", "--schema", "@", "--config", "retention.ms=1"), "spec.retention.ms"),
        (("create", "one", "--schema", "bad"), "schema"),
        (("list", "--selector", "a in"), "selector"),
        (("delete", "absent", "--yes"), "'absent'"),
    ],
)
def test_an_error_of_the_gateway_is_printed(
    command: Command,
    schema_file: str,
    tmp_path: Path,
    arguments: tuple[str, ...],
    words: str,
) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text("{")
    files = {"@": schema_file, "bad": str(bad)}
    run = command("channels", *(files.get(argument, argument) for argument in arguments))
    assert run.status == 1
    assert run.err.startswith("sluiceway: ")
    assert words in run.err


def test_tail_prints_existing_records(command: Command, gateway_url: str, name: str) -> None:
    with Gateway(gateway_url) as gateway, gateway.channel(name, SCHEMA).writer() as writer:
        writer.write([{"carrier": "Ünited", "delay": float(delay)} for delay in range(5)])
    lines = command("tail", name, "--no-follow").out.splitlines()
    assert [json.loads(line) for line in lines] == [
        {"carrier": "Ünited", "delay": float(delay)} for delay in range(5)
    ]
    assert "Ünited" in lines[0]
    assert command("tail", name, "--from-beginning", "-n", "2").out.splitlines() == lines[:2]


@pytest.mark.sample
@pytest.mark.parametrize("partition", [0, 1], ids=["same partition", "added partition"])
def test_tail_follows_from_the_end(gateway_url: str, name: str, partition: int) -> None:
    with Gateway(gateway_url) as gateway:
        channel = gateway.channel(name, SCHEMA, partitions=1)
        with channel.writer() as writer:
            writer.write([{"carrier": "old", "delay": 0.0}])
        with process("tail", name, "-n", "3", "--url", gateway_url) as running:
            running.until("waiting for (records)")
            channel.update(partitions=1 + partition)
            with channel.writer(partition=partition) as writer:
                writer.write([{"carrier": "new", "delay": 1.0}] * 3)
            lines = [running.line() for _ in range(3)]
            assert running.wait() == 0
    assert [json.loads(line)["carrier"] for line in lines] == ["new"] * 3


def test_tail_of_a_missing_channel_names_the_commands_to_list_and_create(
    command: Command, name: str
) -> None:
    command("tail", name).failed(f"no channel {name!r}", f"sluiceway channels create {name}")


def test_tail_reports_or_skips_a_corrupt_message(
    command: Command, gateway_url: str, kafka: SharedKafka, name: str
) -> None:
    with Gateway(gateway_url) as gateway:
        channel = gateway.channel(name, SCHEMA)
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
        producer.produce(channel.status.topic.name, b"hello")
        assert producer.flush(30) == 0
        with channel.writer() as writer:
            writer.write([{"carrier": "UA", "delay": 1.0}])
    command("tail", name, "--no-follow").failed("partition 0", "offset 0")
    assert len(command("tail", name, "--no-follow", "--skip-corrupt").out.splitlines()) == 1


def test_channels_and_groups_have_the_names_that_kafka_allows(
    command: Command, schema_file: str, name: str, gateway_url: str
) -> None:
    names = [f"{name}.Team_A", f"{name}.Team.A"]
    for channel_name in names:
        created = command("channels", "create", channel_name, "--schema", schema_file)
        created.succeeded()
    groups = ["team a/billing", "100% größe", "..", "[red]x[/red]"]
    with Gateway(gateway_url) as gateway, ExitStack() as stack:
        channel = gateway.channel(names[0])
        for group in groups:
            stack.enter_context(channel.reader(group=group))
        output = command("channels", "status", names[0]).out
    for group in groups:
        assert group in output
        assert f"{group}[0]" in output
    command("channels", "create", "a b", "--schema", schema_file).failed("'a b'", "a-z, A-Z, 0-9")


def test_messages_name_the_options_of_the_command_line(
    command: Command, schema_file: str, name: str, gateway_url: str
) -> None:
    create = f"Create it with `sluiceway channels create {name} --schema FILE`"
    command("channels", "show", name).failed(f"no channel {name!r}", create)
    command("channels", "create", name, "--schema", schema_file)
    with Gateway(gateway_url) as gateway, gateway.channel(name).reader(group="g"):
        refused = command("channels", "delete", name, "--yes")
    refused.failed("in use by g[0]", "--force deletes the channel anyway")
    assert "force=" not in refused.err


def test_the_interval_follows_the_patience_of_a_channel(
    command: Command, schema_file: str, name: str
) -> None:
    def heartbeat() -> object:
        return json.loads(command("channels", "show", name).out)["spec"]["heartbeat"]

    command("channels", "create", name, "--schema", schema_file, "--patience", "3")
    assert heartbeat() == {"interval_ms": 500, "timeout_ms": 3000}
    command("channels", "update", name, "--patience", "30", "--heartbeat-interval", "4")
    assert heartbeat() == {"interval_ms": 4000, "timeout_ms": 30_000}
    command("channels", "update", name, "--mirrored")
    command("channels", "update", name, "--patience", "12")
    assert heartbeat() == {"interval_ms": 2000, "timeout_ms": 12_000}
    refused = command("channels", "update", name, "--heartbeat-interval", "5")
    refused.failed("more than a third of the patience, which is 12 s", status=2)
    command("channels", "update", name, "--patience", "0.1").failed("0.3", status=2)


def test_the_idle_ttl_of_a_channel_is_set_and_removed(
    command: Command, schema_file: str, name: str
) -> None:
    def idle_ms() -> object:
        return json.loads(command("channels", "show", name).out)["spec"]["idle_ms"]

    command("channels", "create", name, "--schema", schema_file, "--idle", "7d")
    assert idle_ms() == 7 * 86_400_000
    command("channels", "update", name, "--idle", "30s").failed(
        "idle is 30.0 s; it takes from a minute to ten years"
    )
    command("channels", "update", name, "--idle", "0s")
    assert idle_ms() is None


def test_the_limit_of_growth_by_groups_is_set_and_removed(
    command: Command, schema_file: str, name: str
) -> None:
    def max_partitions() -> object:
        return json.loads(command("channels", "show", name).out)["spec"]["max_partitions"]

    command("channels", "create", name, "--schema", schema_file, "--max-partitions", "8")
    assert max_partitions() == 8
    command("channels", "update", name, "--mirrored")
    assert max_partitions() == 8
    command("channels", "update", name, "--max-partitions", "0")
    assert max_partitions() is None


def test_close_and_delete_name_endpoints_and_unread_records(
    command: Command, gateway_url: str, schema_file: str, name: str
) -> None:
    command("channels", "create", name, "--schema", schema_file)
    with Gateway(gateway_url) as gateway:
        channel = gateway.channel(name)
        with channel.writer(group="load") as writer:
            writer.write([{"carrier": "UA", "delay": 0.0}] * 3)
            closing = command("channels", "close", name, "-y").out
            assert closing.startswith(f"channel {name} is closing: it waits for writers: load[0]")
            command("channels", "delete", name, "-y").failed("in use by load[0]")
        waited = command("channels", "close", name, "-y", "--wait")
        assert (waited.status, waited.out) == (0, f"channel {name} is closed\n")
        with channel.reader(group="delays") as reader:
            reader.read(1, timeout=None)
            reader.commit()
    command("channels", "delete", name, "-y").failed("has not committed 2 messages of partition 0")
    assert (
        command("channels", "delete", name, "-y", "--force").out == f"channel {name} is deleted\n"
    )


def test_a_channel_of_bytes_is_created_without_a_schema(command: Command, name: str) -> None:
    created = command("channels", "create", name, "--format", "bytes")
    created.succeeded()
    assert json.loads(command("channels", "show", name).out)["spec"]["format"] == "bytes"
    refused = command("channels", "create", f"{name}-typed", "--format", "arrow")
    assert refused.status != 0
    assert "its format is bytes" in " ".join(refused.err.split())


def test_failed_writers_are_listed_and_dismissed(
    command: Command, schema_file: str, name: str, gateway_url: str
) -> None:
    command("channels", "create", name, "--schema", schema_file)
    nothing_failed = f"no writer of the channel {name} failed"
    assert command("channels", "dismiss", name).out == f"{nothing_failed} or is lost\n"
    assert command("channels", "dismiss", name, "--failed").out == f"{nothing_failed}\n"
    with Gateway(gateway_url) as gateway:
        channel = gateway.channel(name)
        for count in (0, 1):
            with suppress(KeyError), channel.writer() as writer:
                if count:
                    writer.write({"carrier": "UA", "delay": 1.0})
                    writer.flush()
                raise KeyError("no such carrier")
        empty, failed = (endpoint for endpoint in channel.endpoints() if endpoint.state == "error")

        listing = command("channels", "dismiss", name)
        assert (listing.status, "--failed, --lost or --endpoint ID" in listing.err) == (1, True)
        header, first, second = listing.out.splitlines()
        assert header.split() == ["ENDPOINT", "WRITER", "STATE", "SINCE", "CAUSE"]
        assert first.split()[:4] == [empty.id, "writer", empty.id[:8], "failed"]
        assert first.endswith("KeyError (wrote nothing)")
        assert second.rstrip().endswith("KeyError")

        dismissed = command("channels", "dismiss", name, "--endpoint", empty.id)
        assert dismissed.out == f"endpoint {empty.id} is dismissed\n"
        command("channels", "dismiss", name, "--endpoint", empty.id).failed("was dismissed before")
        assert command("channels", "dismiss", name, "--lost").out == (
            f"no writer of the channel {name} is lost\n"
        )
        dismissed = command("channels", "dismiss", name, "--failed", "--lost")
        assert dismissed.out == f"endpoint {failed.id} is dismissed\n"
        assert len(list(channel.reader())) == 1


def test_only_a_failed_or_lost_endpoint_can_be_dismissed(
    command: Command, name: str, gateway_url: str
) -> None:
    rare = Heartbeat(interval_ms=60_000, timeout_ms=600_000)
    with Gateway(gateway_url) as gateway:
        channel = gateway.channel(name, SCHEMA, heartbeat=rare)
        with channel.writer() as writer:
            id_ = str(writer.endpoint_id)
            command("channels", "dismiss", name, "--endpoint", id_).failed("is opened and healthy")
    command("channels", "dismiss", name, "--endpoint", id_).failed("is closed and healthy")


def test_commits_and_open_batches_are_listed(
    command: Command, schema_file: str, name: str, gateway_url: str
) -> None:
    command("channels", "create", name, "--schema", schema_file, "--delivery", "exactly_once")
    with closing(Control(Transport(gateway_url))) as control:
        uid = control.channel(name).uid
        first = BatchRequest(channel=name, uid=uid, key="day-1", owner="job", instance="i")
        batch = control.ledger.open(first)
        control.ledger.commit(first, batch, manifest={}, records=0, counts={})
        control.ledger.open(replace(first, key="day-2"))
    listed = command("channels", "commits", name).out.splitlines()
    assert [line.split()[:3] for line in listed[1:]] == [
        ["open", "day-2", "job"],
        ["1", "committed", "day-1"],
    ]
    printed = command("channels", "commits", name, "--json").out.splitlines()
    lines = [json.loads(line) for line in printed]
    assert [(entry["key"], entry.get("number")) for entry in lines] == [
        ("day-2", None),
        ("day-1", 1),
    ]
    command("channels", "create", f"{name}-plain", "--schema", schema_file)
    refused = command("channels", "commits", f"{name}-plain")
    assert refused.status == 1
    assert "exactly_once" in refused.err


TYPED = {
    "type": "record",
    "name": "Payment",
    "fields": [
        {
            "name": "amount",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2},
        },
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "at", "type": {"type": "long", "logicalType": "time-micros"}},
        {"name": "when", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "raw", "type": "bytes"},
    ],
}


def test_tail_prints_every_type_as_json(command: Command, gateway_url: str, name: str) -> None:
    record = {
        "amount": Decimal("12.50"),
        "day": date(2013, 1, 1),
        "at": time(5, 15),
        "when": datetime(2013, 1, 1, 5, 15, tzinfo=UTC),
        "id": UUID(int=15),
        "raw": b"\x00\xff",
    }
    with Gateway(gateway_url) as gateway, gateway.channel(name, TYPED).writer() as writer:
        writer.write([record])
    printed = command("tail", name, "--no-follow")
    printed.succeeded()
    assert json.loads(printed.out) == {
        "amount": "12.50",
        "day": "2013-01-01",
        "at": "05:15:00",
        "when": "2013-01-01T05:15:00+00:00",
        "id": "00000000-0000-0000-0000-00000000000f",
        "raw": "AP8=",
    }
