"""docs/coming-from.md has every public name of the Broker, with a test that calls it."""

import copy
import inspect
import re
from pathlib import Path

import pytest

import sluiceway.broker
from sluiceway.broker import Broker

ROOT = Path(__file__).parents[3]
#: Every public name of `pykafka.broker.Broker`, with the parameters that it documents.
DOCUMENTED = {
    "__init__": "id_ host port handler socket_timeout_ms offsets_channel_socket_timeout_ms "
    "buffer_size source_host source_port ssl_config broker_version api_versions",
    "from_metadata": "metadata handler socket_timeout_ms offsets_channel_socket_timeout_ms "
    "buffer_size source_host source_port ssl_config broker_version api_versions",
    "connect": "attempts",
    "connect_offsets_channel": "attempts",
    "fetch_messages": "partition_requests timeout min_bytes",
    "produce_messages": "produce_request",
    "request_offset_limits": "partition_requests",
    "request_metadata": "topics",
    "commit_consumer_group_offsets": "consumer_group consumer_group_generation_id consumer_id "
    "preqs",
    "fetch_consumer_group_offsets": "consumer_group preqs",
    "join_group": "connection_id consumer_group member_id topic_name membership_protocol",
    "leave_group": "connection_id consumer_group member_id",
    "sync_group": "connection_id consumer_group generation_id member_id group_assignment",
    "heartbeat": "connection_id consumer_group generation_id member_id",
    "list_groups": "",
    "describe_groups": "group_ids",
    "create_topics": "topic_reqs timeout",
    "delete_topics": "topics timeout",
    "fetch_api_versions": "",
}
PROPERTIES = (
    *("connected", "offsets_channel_connected", "id", "host", "port"),
    *("handler", "offsets_channel_handler"),
)


#: The fields of pykafka's tuples, in their order.
SHAPES = {
    "ApiVersionsSpec": "key min max",
    "BrokerMetadata": "id host port",
    "CreateTopicRequest": "topic_name num_partitions replication_factor replica_assignment "
    "config_entries",
    "DescribeGroupResponse": "error_code group_id state protocol_type protocol members",
    "FetchPartitionResponse": "max_offset messages err",
    "GroupListing": "group_id protocol_type",
    "GroupMember": "member_id client_id client_host member_metadata member_assignment",
    "OffsetCommitPartitionResponse": "err",
    "OffsetFetchPartitionResponse": "offset metadata err",
    "OffsetPartitionResponse": "offset err",
    "PartitionFetchRequest": "topic_name partition_id offset max_bytes",
    "PartitionMetadata": "id leader replicas isr err",
    "PartitionOffsetCommitRequest": "topic_name partition_id offset timestamp metadata",
    "PartitionOffsetFetchRequest": "topic_name partition_id",
    "PartitionOffsetRequest": "topic_name partition_id offsets_before max_offsets",
    "ProducePartitionResponse": "err offset",
    "TopicMetadata": "name partitions err",
}


def rows() -> dict[str, tuple[str, str]]:
    """Return the file and the test of each name."""
    page = (ROOT / "docs" / "coming-from.md").read_text()
    section = page.split("### The Broker's calls")[1].split("\n###")[0]
    rows_by_name = {}
    for line in section.splitlines():
        row = re.fullmatch(r"\| (.+?) \| .+ \| `(tests/[\w/]+\.py)::(test_\w+)` \|", line)
        if row:
            for name in re.findall(r"`(\w+)[`(]", row[1]):
                rows_by_name["__init__" if name == "Broker" else name] = (row[2], row[3])
    return rows_by_name


@pytest.mark.parametrize("name", DOCUMENTED)
def test_a_call_has_the_parameters_of_pykafkas_in_its_order(name: str) -> None:
    call = getattr(Broker, name)
    parameters = inspect.signature(call).parameters.values()
    own = [
        parameter.name
        for parameter in parameters
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    ]
    assert [argument for argument in own if argument != "self"] == DOCUMENTED[name].split()


@pytest.mark.parametrize("name", SHAPES)
def test_requests_and_answers_are_tuples_of_pykafkas_fields(name: str) -> None:
    shape = getattr(sluiceway.broker, name)
    assert issubclass(shape, tuple)
    assert shape._fields == tuple(SHAPES[name].split())


def test_a_refused_answer_shows_its_reason() -> None:
    response = sluiceway.broker.OffsetPartitionResponse([], 3).because("no such partition")
    offsets, code = response
    assert (offsets, code, response.reason) == ([], 3, "no such partition")
    assert repr(response).endswith("err=3, reason='no such partition')")
    copied = copy.deepcopy(response)
    assert (copied, copied.reason) == (response, response.reason)


def test_the_table_has_every_public_name_and_no_other() -> None:
    assert rows().keys() == {*DOCUMENTED, *PROPERTIES}
    own = {name for name, _ in inspect.getmembers(Broker) if not name.startswith("_")}
    assert own == {*DOCUMENTED, *PROPERTIES, "close"} - {"__init__"}


@pytest.mark.parametrize("name", [*DOCUMENTED, *PROPERTIES])
def test_the_test_of_a_name_calls_it(name: str) -> None:
    file, test = rows()[name]
    source = (ROOT / file).read_text()
    body = source.split(f"def {test}(")[1].split("\ndef ")[0]
    called = "broker_at(" if name == "__init__" else f".{name}"
    # Directly, or in a helper of the same file or of broker_calls.py.
    helpers = (
        source.split("\n@pytest.fixture")[0] + (ROOT / "tests/support/broker_calls.py").read_text()
    )
    used = [
        part
        for part in re.split(r"\n(?=(?:    )?def )", helpers)
        if (head := re.match(r"\s*def (\w+)\(", part)) and f"{head[1]}(" in body
    ]
    assert any(called in part for part in (body, *used)), (name, test)
