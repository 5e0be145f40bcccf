import io
import itertools
import json
import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from confluent_kafka import Producer
from hypothesis import example, given
from hypothesis import strategies as st

from faults import at_call
from processes import Run, Sluiceway, Terminal
from relay import Relay
from shared_kafka import SharedKafka
from sluiceway_gateway.channels.model import Spec
from sluiceway_gateway.cli.apply import WOULD_CHANGE, dump_document
from sluiceway_gateway.cli.documents import document_schema, read_documents

SCHEMA = {
    "type": "record",
    "name": "Departure",
    "fields": [{"name": "carrier", "type": "string"}, {"name": "delay", "type": "double"}],
}
UNREACHABLE = "http://127.0.0.1:9"
_numbers = itertools.count(1)
Command = Callable[..., Run]


@pytest.fixture
def name() -> str:
    return f"applied-{next(_numbers)}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "channels"
    path.mkdir()
    return path


def document(name: str, labels: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name} | ({} if labels is None else {"labels": labels})
    return {"metadata": metadata, "spec": {"schema": SCHEMA, **spec}}


def write(path: Path, *documents: Any) -> str:
    path.write_text(yaml.safe_dump_all(documents, sort_keys=False))
    return str(path)


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


def channel_json(command: Command, name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(command("channels", "show", name).out)
    return document


def test_files_are_applied_once_and_the_exit_status_of_a_dry_run_shows_changes(
    command: Command, folder: Path, name: str
) -> None:
    write(folder / "a.yaml", document(f"{name}-a", {"team": name}), None, document(f"{name}-b"))
    (folder / "deeper").mkdir()
    spec = {"format": "bytes", "partitions": 2}
    text = json.dumps({"metadata": {"name": f"{name}-c"}, "spec": spec})
    (folder / "deeper" / "c.json").write_text(text)
    (folder / "README.md").write_text("no channel")
    arguments = ("apply", "-f", str(folder))

    dry = command(*arguments, "--dry-run")
    assert dry.status == WOULD_CHANGE == 2
    assert f'+ {name}-a: create\n    + labels.team: "{name}"\n' in dry.out
    assert '    + schema.fields.carrier: "string"\n' in dry.out
    assert "    + partitions: 2\n" in dry.out
    assert "plan: 3 to create, 0 to change, 0 to delete, 0 unchanged, 0 refused\n" in dry.out
    command("channels", "show", f"{name}-a").failed("no channel")

    applied = command(*arguments, "--yes")
    applied.succeeded()
    assert applied.out.endswith(f"channel {name}-c is created\n")
    assert channel_json(command, f"{name}-c")["spec"]["partitions"] == 2
    for options in (["--dry-run"], ["--yes"], []):
        again = command(*arguments, *options)
        again.succeeded()
        assert "3 unchanged" in again.out
    assert channel_json(command, f"{name}-a")["metadata"]["generation"] == 1


def test_a_change_is_shown_field_by_field_and_omitted_fields_keep_their_values(
    command: Command, folder: Path, name: str
) -> None:
    labels = {"team": "a", "stage": "test"}
    path = write(folder / "a.yaml", document(name, labels, partitions=2, retention={"ms": 60_000}))
    command("apply", "-f", path, "--yes").succeeded()
    gate = {"name": "gate", "type": "string", "default": ""}
    longer = {**SCHEMA, "fields": [*SCHEMA["fields"], gate]}
    write(folder / "a.yaml", document(name, {"team": "b"}, partitions=3, schema=longer))
    run = command("apply", "-f", path, "--yes")
    run.succeeded()
    lines = run.out.splitlines()
    assert lines[0] == f"~ {name}: change"
    assert set(lines[1:5]) == {
        '    ~ labels.team: "a" -> "b"',
        '    - labels.stage: "test"',
        "    ~ partitions: 2 -> 3",
        '    + schema.fields.gate: {"type": "string", "default": ""}',
    }
    assert lines[-1] == f"channel {name} is changed"
    assert channel_json(command, name)["spec"]["retention"]["ms"] == 60_000


@pytest.mark.sample
@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"partitions": 1}, ["partitions_shrink", "cannot have 1"]),
        ({"format": "arrow"}, ["immutable_field", "format"]),
        ({"delivery": "exactly_once"}, ["immutable_field", "delivery"]),
        (
            {"schema": {**SCHEMA, "fields": [{"name": "b", "type": "string"}]}},
            ["schema_incompatible"],
        ),
        ({"partition": 4}, ["no such field", "bad.yaml:12 (document 1): /spec/partition"]),
        ({"retention": {"days": 4}}, ["bad.yaml:13 (document 1): /spec/retention/days"]),
        ({"partitions": "many"}, ["bad.yaml:12 (document 1): /spec/partitions"]),
    ],
)
def test_a_refused_channel_is_explained_and_nothing_is_changed(
    command: Command, folder: Path, name: str, spec: dict[str, Any], words: list[str]
) -> None:
    write(folder / "a.yaml", document(name, partitions=2))
    command("apply", "-f", str(folder), "--yes").succeeded()
    write(folder / "a.yaml", document(f"{name}-new"))
    write(folder / "bad.yaml", document(name, **spec))
    for options in (["--yes"], ["--dry-run"]):
        run = command("apply", "-f", str(folder), *options)
        assert (run.status, "nothing was changed" in run.err) == (1, True)
        assert f"+ {name}-new: create" in run.out
        assert f"! {name}: refused" in run.out
        for word in words:
            assert word in run.out
    assert channel_json(command, name)["metadata"]["generation"] == 1
    command("channels", "show", f"{name}-new").failed("no channel")


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("a.yaml", "metadata: {labels: {}}\nspec: {}\n", "a.yaml:1 (document 1): metadata.name is"),
        ("a.yaml", "---\n---\nmetadata: []\n", "a.yaml:3 (document 1): metadata.name is missing"),
        ("a.yaml", "metadata: {name: 7}\n", "the channel name is 7"),
        ("a.yaml", "metadata:\n  name: a/b\n", "a.yaml:2 (document 1): the channel name is 'a/b'"),
        ("a.yaml", "- 1\n", "a.yaml:1 (document 1): not a mapping"),
        ("a.yaml", "metadata: {name: a}\nspec: {b: [}\n", "a.yaml:2 (document 1): not YAML"),
        ("a.yaml", "metadata: {name: a}\nmetadata: {}\n", "a.yaml:2 (document 1): the key"),
        ("a.yaml", "metadata: {name: a}\nspec: {1: 2}\n", "the key '1' is not text"),
        ("a.yaml", "metadata: {name: a}\nspec: !!set {a}\n", "has no form in JSON"),
        ("a.yaml", "metadata: {name: a}\nspec: {b: .inf}\n", "no number of JSON"),
        ("a.yaml", "metadata: {name: a}\nspec: &a {b: *a}\n", "with aliases counted each time"),
        ("a.yaml", "\x00", "not YAML"),
        ("a.yaml", "metadata: {name: a}\nspec: {<<: {b: 1}}\n", "a.yaml:2 (document 1): merging"),
        ("a.json", '{"metadata": {"name": "a"}}\n{', "a.json:2 (document 2): not JSON"),
        (
            "a.yaml",
            "metadata: {name: a}\nspec: {partitions: 010}\n",
            "a.yaml:2 (document 1): 010 is 8",
        ),
        ("a.yaml", "metadata: {name: a}\nspec: {idle_ms: 1:30}\n", "1:30 is 90 in YAML 1.1; write"),
        ("a.json", '{"metadata": {"name": "a", "name": "b"}}', "the key 'name' occurs twice"),
        (
            "a.json",
            '{"metadata": {"name": "a"},\n"spec": {"x": [1, {"b": ",",\n"b": 2}]}}',
            "a.json:3 (document 1): the key 'b' occurs twice",
        ),
        ("a.json", '{"metadata": {"name": "a"}, "spec": NaN}', "no numbers of JSON"),
        ("a.json", '{"metadata": {"name": "a"}, "spec": "\\ud800"}', "surrogate"),
        ("a.json", "[" * 100_000, "nested deeper"),
        ("a.json", f'\n{{"spec": {"9" * 5000}}}', "a.json:2 (document 1): a number has too many"),
        ("a.yaml", f"metadata: {{name: a}}\nspec: {{b: {'9' * 5000}}}\n", "9' is no int"),
        ("a.yaml", "", "no channel is in it"),
        ("a.txt", "", "the folder has no file that ends with .yaml .yml .json"),
    ],
)
def test_an_invalid_document_is_refused_before_any_request(
    sluiceway: Sluiceway, folder: Path, file: str, content: str, words: str
) -> None:
    (folder / file).write_text(content)
    sluiceway("apply", "-f", str(folder), "--dry-run", url=UNREACHABLE).failed(words)


def test_all_problems_of_all_files_are_reported_together(
    sluiceway: Sluiceway, folder: Path
) -> None:
    write(folder / "a.yaml", document("one"), document("two"))
    write(folder / "b.yaml", document("two"), 7)
    (folder / "c.yaml").write_bytes(b"\xff")
    run = sluiceway("apply", "-f", str(folder), "-f", str(folder / "absent"), url=UNREACHABLE)
    assert run.status == 1
    for words in (
        "b.yaml:2 (document 1): the channel 'two' is also in",
        "b.yaml:12 (document 2): not a mapping",
        "c.yaml: not UTF-8 at byte 1",
        "absent: not readable: No such file",
    ):
        assert words in run.err


def test_a_refusal_has_the_line_of_each_field_in_json_and_words_with_their_types_in_yaml(
    command: Command, folder: Path, name: str
) -> None:
    (folder / "a.json").write_text(
        f'{{"metadata": {{"name": "{name}-a", "labels":\n{{"a": "\\"}},\\\\",\n"b/c": 1}}}},\n'
        f'"spec": {{"schema": {json.dumps(SCHEMA)},\n\n"partition": 2}}}}'
    )
    (folder / "b.yaml").write_text(
        f"metadata:\n  name: {name}-b\n  labels:\n    hot: yes\n    none:\nspec: 1.10\n"
    )
    (folder / "c.yaml").write_text(
        f"metadata: {{name: {name}-c}}\n"
        "spec:\n  schema:\n    type: record\n    name: R\n    fields:\n"
        "    - {name: a, type: long}\n"
        "    - {name: b, type: {type: enum, name: E, symbols: [YES, NO]}}\n"
    )
    run = command("apply", "-f", str(folder), "--dry-run")
    assert run.status == 1
    for words in (
        "c.yaml:8 (document 1): /spec/schema/fields/1\n",
        "the symbol True is not text",
        "a.json:3 (document 1): /metadata/labels/b~1c\n",
        "a.json:6 (document 1): /spec/partition\n",
        "b.yaml:4 (document 1): /metadata/labels/hot (bool yes)\n",
        "b.yaml:5 (document 1): /metadata/labels/none (null)\n",
        "b.yaml:6 (document 1): /spec (float 1.10)\n",
        "/spec: not an object",
    ):
        assert words in run.out


@pytest.mark.parametrize(
    ("part", "line"),
    [
        ('\r\n"k":\r\n\t{"a":\r\n1}', 4),
        ('\n"k":{"é\u2028\x85\x7f":\n0,\n"a":1}', 5),
        # These are no YAML, so they have the line of the document.
        ('\n"k"\n:{"a":1}', 2),
        (f'"{"l" * 2000}":0,\n"k":{{"a":1}}', 2),
    ],
)
def test_the_line_of_a_part_of_json_is_independent_of_white_space_and_escapes(
    folder: Path, part: str, line: int
) -> None:
    path = folder / "a.json"
    text = f'{{"metadata":{{"name":"a"}}}}\n{{"metadata":{{"name":"b"}},{part}}}'
    path.write_text(text, encoding="utf-8", newline="")
    _, second = read_documents([str(folder)])
    assert second.source.place("/k/a") == f"{path}:{line} (document 2)"
    assert second.source.explained("/k/a") == "/k/a"


def test_a_document_may_name_its_json_schema(folder: Path) -> None:
    value = {"$schema": "../channel.schema.json"} | document("a")
    jsonschema.validate(value, document_schema())
    (folder / "a.json").write_text(json.dumps(value))
    (document_read,) = read_documents([str(folder)])
    assert document_read.body == {"metadata": {}, "spec": {"schema": SCHEMA}}


def test_a_part_of_a_folder_that_is_not_read_is_refused(
    sluiceway: Sluiceway, folder: Path, tmp_path: Path
) -> None:
    # Otherwise --prune would delete its channels.
    write(folder / "a.yaml", document("one"))
    (tmp_path / "elsewhere").mkdir()
    write(tmp_path / "elsewhere" / "b.yaml", document("two"))
    (folder / "linked").symlink_to(tmp_path / "elsewhere")
    (folder / "dangling.yaml").symlink_to(tmp_path / "gone.yaml")
    (folder / "dangling.txt").symlink_to(tmp_path / "gone.txt")
    (folder / ".#a.yaml").symlink_to("ana@host.1")
    (folder / "secret").mkdir()

    def refuse(path: Any) -> None:
        if str(path).endswith("secret"):
            # The user of the tests can read everything.
            raise PermissionError(13, "Permission denied", path)

    with at_call(os, "scandir", refuse):
        run = sluiceway("apply", "-f", str(folder), url=UNREACHABLE)
    assert run.status == 1
    assert "secret: not readable: Permission denied" in run.err
    assert "linked: a link to a folder, which is not followed; give it with -f" in run.err
    assert "dangling.yaml: not readable: No such file" in run.err
    assert len(run.err.splitlines()) == 3


def test_a_file_too_large_for_documents_is_not_read_into_memory(
    sluiceway: Sluiceway, folder: Path
) -> None:
    data = folder / "data.json"
    data.touch()
    os.truncate(data, 128 << 20)
    run = sluiceway("apply", "-f", str(folder), "--dry-run")
    assert run.status == 1
    assert f"{data}: larger than 64 MiB" in run.err


def test_a_path_that_cannot_be_looked_up_is_reported(sluiceway: Sluiceway) -> None:
    run = sluiceway("apply", "-f", "a" * 300, url=UNREACHABLE)
    run.failed("not readable: File name too long")


def test_files_of_a_mounted_config_map_are_read_once(folder: Path) -> None:
    data = folder / "..2026_11_25"
    data.mkdir()
    write(data / "a.yaml", document("one"))
    (folder / "..data").symlink_to(data.name)
    (folder / "a.yaml").symlink_to("..data/a.yaml")
    assert [document_read.name for document_read in read_documents([str(folder)])] == ["one"]


def test_a_byte_order_mark_is_ignored(folder: Path) -> None:
    for file in ("a.json", "b.yaml"):
        text = json.dumps({"metadata": {"name": file[0]}})
        (folder / file).write_text(text, encoding="utf-8-sig")
    assert [document_read.name for document_read in read_documents([str(folder)])] == ["a", "b"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "Missing option '-f'"),
        (("-f", ".", "--prune"), "--prune needs a selector"),
        (("-f", ".", "--prune", "-l", " "), "--prune needs a selector"),
        (("-f", ".", "-l", "team=a"), "--prune needs a selector"),
        (("-f", ".", "--force"), "--force is for --prune only"),
        (("-f", ".", "--dry-run", "--no-such"), "--no-such"),
    ],
)
def test_a_usage_error_has_another_status_than_changes(
    sluiceway: Sluiceway, arguments: tuple[str, ...], words: str
) -> None:
    sluiceway("apply", *arguments, url=UNREACHABLE).failed(words, "apply --help", status=1)


def test_standard_input_is_applied_only_with_yes(command: Command, name: str) -> None:
    for text in (
        yaml.safe_dump(document(name)),
        json.dumps(document(name)) + json.dumps(document(f"{name}-b")),
    ):
        for options in ([], ["--yes"]):
            stdin = io.TextIOWrapper(io.BytesIO(text.encode()))
            run = command("apply", "-f", "-", *options, stdin=stdin)
            assert run.status == (0 if options else 1), run
            assert options or "use --yes" in run.err
    assert channel_json(command, f"{name}-b")["spec"]["schema"] == SCHEMA


def test_apply_asks_for_confirmation_on_a_terminal(
    command: Command, folder: Path, name: str
) -> None:
    path = write(folder / "a.yaml", document(name))
    for answer in ("n", "y"):
        run = command("apply", "-f", path, stdin=Terminal(answer))
        assert "Make this change? [y/N]:" in run.err
        assert run.status == (0 if answer == "y" else 1)
        assert answer == "y" or "nothing was changed" in run.err


def test_a_concurrent_change_stops_the_run_and_is_kept(
    command: Command, folder: Path, name: str
) -> None:
    names = [f"{name}-{suffix}" for suffix in "abc"]
    path = write(folder / "a.yaml", *(document(channel_name) for channel_name in names))
    command("apply", "-f", path, "--yes").succeeded()
    write(folder / "a.yaml", *(document(channel_name, partitions=3) for channel_name in names))

    def update(*_: object) -> None:
        assert command("channels", "update", names[1], "--partitions", "2").status == 0

    user = Terminal("y")
    with at_call(user, "readline", update):
        run = command("apply", "-f", path, stdin=user)
    assert run.status == 1
    assert f"{names[1]}: changed by somebody else since the plan" in run.err
    assert f"Done: {names[0]}; not started: {names[2]}." in run.err
    partitions = [
        channel_json(command, channel_name)["spec"]["partitions"] for channel_name in names
    ]
    assert partitions == [3, 2, 1]


def test_a_channel_that_is_created_during_the_plan_is_refused_in_plain_words(
    sluiceway: Sluiceway, command: Command, gateway_url: str, folder: Path, name: str
) -> None:
    path = write(folder / "a.yaml", document(name))
    with closing(Relay(port_of(gateway_url))) as relay:
        # It has read that there is no channel of this name.
        relay.call_at(b"PUT ", lambda: command("apply", "-f", path, "--yes").succeeded())
        run = sluiceway("apply", "-f", path, "--dry-run", url=relay.url)
    assert run.status == 1
    assert "somebody else creates, changes or deletes it at the same time; apply again" in run.out
    assert "If-None-Match" not in run.out


def test_a_concurrently_created_channel_is_not_changed(
    command: Command, folder: Path, name: str
) -> None:
    path = write(folder / "a.yaml", document(name, partitions=3))
    other = write(folder / "other.yaml", document(name, partitions=2))

    def create(*_: object) -> None:
        assert command("apply", "-f", other, "--yes").status == 0

    user = Terminal("y")
    with at_call(user, "readline", create):
        run = command("apply", "-f", path, stdin=user)
    assert (run.status, "changed by somebody else" in run.err) == (1, True)
    assert channel_json(command, name)["spec"]["partitions"] == 2


def test_a_refusal_that_depends_on_earlier_changes_is_reported(
    command: Command, folder: Path, name: str
) -> None:
    schema = folder / "schema.txt"
    schema.write_text(json.dumps(SCHEMA))
    command("channels", "create", name, "--schema", str(schema)).succeeded()
    topic = channel_json(command, name)["status"]["topic"]["name"]
    command("channels", "forget", name, "--yes").succeeded()
    names = [f"{name}-{suffix}" for suffix in "abc"]
    one, two, three = (document(channel_name, topic={"name": topic}) for channel_name in names)
    del three["spec"]["topic"]
    path = write(folder / "a.yaml", one, two, three)
    assert command("apply", "-f", path, "--dry-run").status == 2
    run = command("apply", "-f", path, "--yes")
    assert run.status == 1
    assert f"{names[1]}: refused: The topic" in run.err
    assert f"Done: {names[0]}; not started: {names[2]}." in run.err
    command("channels", "show", names[2]).failed("no channel")


@pytest.mark.parametrize("request_arrives", [False, True])
def test_an_outage_during_the_changes_reports_the_unconfirmed_channel(
    sluiceway: Sluiceway,
    gateway_url: str,
    folder: Path,
    name: str,
    request_arrives: bool,
) -> None:
    names = [f"{name}-{suffix}" for suffix in "ab"]
    path = write(folder / "a.yaml", *(document(channel_name) for channel_name in names))
    with closing(Relay(port_of(gateway_url))) as relay:

        def disconnect(*_: object) -> None:
            if request_arrives:
                relay.closes_at_response = True
            else:
                relay.cut()

        user = Terminal("y")
        with at_call(user, "readline", disconnect):
            run = sluiceway("apply", "-f", path, url=relay.url, stdin=user, timeout_s=4.0)
    assert run.status == 1
    assert f"{names[0]}: it may or may not be done: the gateway" in run.err
    assert f"Done: none; not started: {names[1]}." in run.err
    again = sluiceway("apply", "-f", path, "--dry-run", url=gateway_url)
    unchanged = 1 if request_arrives else 0
    assert f"{2 - unchanged} to create, 0 to change, 0 to delete, {unchanged} un" in again.out


def test_a_field_that_may_be_renamed_is_shown_with_its_alias(
    command: Command, folder: Path, name: str
) -> None:
    def renamed(field: str) -> dict[str, object]:
        fields = [{"name": field, "type": ["null", "long"], "default": None}]
        return {**SCHEMA, "fields": fields}

    path = write(folder / "a.yaml", document(name, schema=renamed("a")))
    command("apply", "-f", path, "--yes").succeeded()
    write(folder / "a.yaml", document(name, schema=renamed("b")))
    run = command("apply", "-f", path, "--dry-run")
    assert run.status == 2
    assert "warning: field 'b' is new, and 'a' of its type is gone" in run.out
    assert 'add "aliases": ["a"] to it' in run.out


def test_a_schema_without_numbers_is_that_of_a_channel_of_protobuf(
    command: Command, folder: Path, name: str
) -> None:
    path = write(folder / "a.yaml", document(name, format="protobuf"))
    command("apply", "-f", path, "--yes").succeeded()
    assert "1 unchanged" in command("apply", "-f", path, "--dry-run").out
    exported = yaml.safe_load(command("export", name).out)
    fields = exported["spec"]["schema"]["fields"]
    assert [field["protobuf"]["number"] for field in fields] == [1, 2]
    write(folder / "a.yaml", exported)
    assert "1 unchanged" in command("apply", "-f", path, "--dry-run").out
    fields[0]["protobuf"]["number"] = 3
    write(folder / "a.yaml", exported)
    refused = command("apply", "-f", path, "--dry-run")
    assert refused.status == 1
    assert "the field 'carrier' has the number 3 here and 1 there" in refused.out + refused.err


def test_a_schema_with_its_fields_in_another_order_is_a_change(
    command: Command, folder: Path, name: str
) -> None:
    path = write(folder / "a.yaml", document(name))
    command("apply", "-f", path, "--yes").succeeded()
    write(folder / "a.yaml", document(name, schema={**SCHEMA, "fields": SCHEMA["fields"][::-1]}))
    run = command("apply", "-f", path, "--dry-run")
    assert run.status == 2
    assert f"~ {name}: change\n    ~ schema: the order of its fields\n" in run.out


def test_pruning_deletes_matching_channels_but_none_with_data_unless_forced(
    command: Command, folder: Path, kafka: SharedKafka, name: str
) -> None:
    schema = folder / "schema.txt"
    schema.write_text(json.dumps(SCHEMA))
    for suffix, label in (("kept", name), ("empty", name), ("full", name), ("other", "other")):
        create = ("channels", "create", f"{name}-{suffix}", "--schema", str(schema))
        command(*create, "--label", f"team={label}").succeeded()
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    producer.produce(channel_json(command, f"{name}-full")["status"]["topic"]["name"], b"x")
    assert producer.flush(30) == 0
    path = write(folder / "a.yaml", document(f"{name}-kept"))
    arguments = ("apply", "-f", path, "--prune", "-l", f"team={name}")

    refused = command(*arguments, "--yes")
    assert (refused.status, "nothing was changed" in refused.err) == (1, True)
    assert f"- {name}-empty: delete" in refused.out
    assert f"! {name}-full: refused\n    unread_data: " in refused.out
    assert "--force deletes the channel anyway" in refused.out
    assert f"{name}-other" not in refused.out
    assert channel_json(command, f"{name}-empty")["status"]["phase"] == "ready"

    assert command(*arguments, "--force", "--dry-run").status == 2
    forced = command(*arguments, "--force", "--yes")
    forced.succeeded()
    assert f"channel {name}-full is being deleted" in forced.out
    remaining = command("channels", "list", "-l", f"team={name}", "--json").out.splitlines()
    phases = {
        channel["metadata"]["name"]: channel["status"]["phase"]
        for channel in map(json.loads, remaining)
    }
    assert phases.pop(f"{name}-kept") == "ready"
    assert set(phases.values()) <= {"deleting"}
    assert channel_json(command, f"{name}-other")["status"]["phase"] == "ready"


@pytest.mark.long
def test_applying_an_exported_channel_changes_nothing(
    command: Command, folder: Path, name: str
) -> None:
    everything = document(
        *(f"{name}-all", {"team": name, "no": "2024-01-01"}),
        compatibility="full",
        format="arrow",
        partitions=2,
        pinned=True,
        max_partitions=8,
        replication=1,
        retention={"ms": -1, "bytes": 9_000},
        mirrored=True,
        config={"segment.ms": "60000"},
        delivery="exactly_once",
        idle_ms=86_400_000,
        heartbeat={"interval_ms": 500, "timeout_ms": 30_000},
    )
    plain = document(f"{name}-plain", {"team": name})
    message = {"metadata": {"name": f"{name}-bytes", "labels": {"team": name}}}
    path = write(folder / "a.yaml", everything, plain, {**message, "spec": {"format": "bytes"}})
    command("apply", "-f", path, "--yes").succeeded()

    text = command("export", "-l", f"team={name}")
    text.succeeded()
    exported = {
        exported_document["metadata"]["name"]: exported_document
        for exported_document in yaml.safe_load_all(text.out)
    }
    assert exported == {
        f"{name}-all": everything,
        f"{name}-plain": plain,
        f"{name}-bytes": {**message, "spec": {"format": "bytes"}},
    }
    for exported_document in exported.values():
        jsonschema.validate(exported_document, document_schema())
    for format_ in ("yaml", "json"):
        output = folder / format_
        command("export", "-l", f"team={name}", "--format", format_, "-o", str(output)).succeeded()
        assert sorted(file.name for file in output.iterdir()) == [
            f"{name}-{suffix}.{format_}" for suffix in ("all", "bytes", "plain")
        ]
        again = command("apply", "-f", str(output), "--dry-run")
        again.succeeded()
        assert "3 unchanged" in again.out
    lines = command("export", f"{name}-all", f"{name}-plain", "--format", "json")
    (folder / "both.json").write_text(lines.out)
    assert command("apply", "-f", str(folder / "both.json"), "--dry-run").status == 0


def test_an_adopted_topic_is_exported_without_its_own_values(
    command: Command, folder: Path, name: str
) -> None:
    schema = folder / "schema.txt"
    schema.write_text(json.dumps(SCHEMA))
    command("channels", "create", name, "--schema", str(schema), "--partitions", "2").succeeded()
    topic = channel_json(command, name)["status"]["topic"]["name"]
    command("channels", "forget", name, "--yes").succeeded()
    path = write(
        folder / "a.yaml", {"metadata": {"name": name}, "spec": {"topic": {"name": topic}}}
    )
    assert "+ partitions: 2" not in command("apply", "-f", path, "--dry-run").out
    command("apply", "-f", path, "--yes").succeeded()
    exported = command("export", name).out
    assert yaml.safe_load(exported) == document(name, topic={"name": topic})
    (folder / "a.yaml").write_text(exported)
    command("apply", "-f", path).succeeded()


def test_export_reports_errors(command: Command, folder: Path, name: str, tmp_path: Path) -> None:
    command("export", name).failed(f"no channel {name!r}")
    none = command("export", "-l", f"team={name}")
    assert (none.status, none.out, "nothing was written" in none.err) == (0, "", True)
    command("export", name, "-l", "a=b").failed("names or a selector", status=2)
    path = write(folder / "a.yaml", document(name))
    command("apply", "-f", path, "--yes").succeeded()
    (tmp_path / "file").write_text("")
    command("export", name, "-o", str(tmp_path / "file" / "below")).failed("cannot be written")
    (tmp_path / f"{name}.yaml").symlink_to("/dev/full")
    command("export", name, "-o", str(tmp_path)).failed(f"{tmp_path} cannot be written: No space")


def test_the_json_schema_is_the_gateways_model_with_a_name(sluiceway: Sluiceway) -> None:
    printed = json.loads(sluiceway("apply", "--schema", url=UNREACHABLE).out)
    assert printed == document_schema()
    jsonschema.Draft202012Validator.check_schema(printed)
    spec = Spec.model_json_schema(by_alias=True)
    assert printed["$defs"]["Spec"]["properties"] == spec["properties"]
    for wrong in (
        {"spec": {}},
        {"metadata": {}},
        {"metadata": {"name": "a/b"}},
        {"metadata": {"name": "a"}, "status": {}},
        document("a", partition=4),
        document("a", partitions=0),
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, printed)


def test_an_unavailable_gateway_is_reported_and_nothing_is_changed(
    sluiceway: Sluiceway, folder: Path
) -> None:
    path = write(folder / "a.yaml", document("one"))
    for arguments in (("apply", "-f", path, "--yes"), ("export",)):
        sluiceway(*arguments, url=UNREACHABLE, timeout_s=0.2).failed("does not answer")


_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda values: (
        st.lists(values, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), values, max_size=4)
    ),
    max_leaves=15,
)


@pytest.mark.sample
@pytest.mark.parametrize("format_", ["yaml", "json"])
def test_every_value_round_trips_through_a_document(
    format_: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("documents") / f"a.{format_}"

    @given(_VALUES)
    @example({"\x85": "\u2028", "ä": "\u2029"})
    def check(value: Any) -> None:
        written = {"metadata": {"name": "a"}, "spec": {"config": value}}
        path.write_text(dump_document(written, as_json=format_ == "json"), encoding="utf-8")
        (document_read,) = read_documents([str(path)])
        assert document_read.body == {"metadata": {}, "spec": {"config": value}}

    check()
