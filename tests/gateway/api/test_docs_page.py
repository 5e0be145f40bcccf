"""/docs: served from the gateway only, with the files of npm's swagger-ui-dist."""

import hashlib
import re
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import pytest

from gateways import Rig, code
from sluiceway import __version__
from sluiceway.api.parsing import BY_CODE
from sluiceway_gateway.api import openapi
from sluiceway_gateway.api.openapi import error_codes
from sluiceway_gateway.api.openapi_examples import EXAMPLES, LINKS

DIRECTORY = Path(openapi.__file__).parent / "swagger_ui"
(SUMS,) = DIRECTORY.glob("swagger-ui-dist-*.sha256")
OURS = {"index.html", "page.css", "start.js", SUMS.name}
SUM_OF = {
    name: digest for digest, name in (line.split("  ") for line in SUMS.read_text().splitlines())
}

OPERATIONS = [
    "abort_batch",
    "advance_offsets",
    "attach_endpoint",
    "close_channel",
    "commit_batch",
    "commit_offsets",
    "create_channel",
    "delete_channel",
    "detach_endpoint",
    "dismiss_endpoint",
    "get_broker",
    "get_channel",
    "get_channel_graph",
    "get_channel_history",
    "get_channel_status",
    "get_cluster",
    "get_committed",
    "get_connection",
    "get_endpoint",
    "get_offsets",
    "get_schema",
    "get_token",
    "get_topic",
    "import_offsets",
    "list_channel_changes",
    "list_channel_heartbeats",
    "list_channels",
    "list_commits",
    "list_endpoints",
    "list_messages",
    "list_offsets",
    "list_schemas",
    "list_status",
    "livez",
    "metrics",
    "open_batch",
    "plan_import",
    "plan_repair",
    "readyz",
    "renew_batches",
    "repair_ledger",
    "reset_offsets",
    "resize_group",
    "search_messages",
    "send_heartbeat",
    "sync_endpoint",
    "transfer_batches",
    "transfer_group",
    "upload_slice",
    "wait_for_offsets",
    "watch_channel_status",
    "watch_status",
    "write_messages",
]


class Page(HTMLParser):
    """Collects the URLs and the inline scripts of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.references: list[str] = []
        self.inline: list[str] = []
        self._in_script = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._in_script = tag in ("script", "style")
        self.references += [value or "" for name, value in attrs if name in ("src", "href")]
        self.inline += [name for name, _ in attrs if name.startswith("on") or name == "style"]

    def handle_endtag(self, tag: str) -> None:  # noqa: ARG002 - the name is the base's
        self._in_script = False

    def handle_data(self, data: str) -> None:
        if self._in_script and data.strip():
            self.inline.append(data)


def test_the_served_files_are_exactly_those_of_the_package() -> None:
    assert {file.name for file in DIRECTORY.iterdir()} == OURS | SUM_OF.keys()
    assert {"LICENSE", "NOTICE"} <= SUM_OF.keys()
    for name, digest in SUM_OF.items():
        assert hashlib.sha256((DIRECTORY / name).read_bytes()).hexdigest() == digest, name


def test_the_page_refers_to_nothing_but_the_gateway(shared_rig: Rig) -> None:
    response = shared_rig.http.get("/docs")
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    ours = response.text + (DIRECTORY / "start.js").read_text()
    assert re.findall(r"(?:https?:)?//\S+", ours) == []
    page = Page(response.text)
    assert page.inline == []
    assert len(page.references) == 4
    for reference in page.references:
        assert not urlsplit(reference).netloc
        served = shared_rig.http.get(urljoin("/docs", reference))
        assert served.status_code == 200, reference
        assert served.content == (DIRECTORY / reference.removeprefix("docs/")).read_bytes()


@pytest.mark.parametrize(
    ("file", "media_type"),
    [
        ("swagger-ui-bundle.js", "text/javascript; charset=utf-8"),
        ("start.js", "text/javascript; charset=utf-8"),
        ("swagger-ui.css", "text/css; charset=utf-8"),
        ("page.css", "text/css; charset=utf-8"),
        ("favicon-32x32.png", "image/png"),
    ],
)
def test_files_have_content_types_and_nosniff(shared_rig: Rig, file: str, media_type: str) -> None:
    response = shared_rig.http.get(f"/docs/{file}")
    assert response.headers["content-type"] == media_type
    assert response.headers["x-content-type-options"] == "nosniff"


def test_the_content_security_policy_blocks_other_hosts_and_inline_scripts(
    shared_rig: Rig,
) -> None:
    policy = shared_rig.http.get("/docs").headers["content-security-policy"]
    rules = dict(directive.strip().split(" ", 1) for directive in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["script-src"] == "'self'"
    allowed = {source for sources in rules.values() for source in sources.split()}
    assert allowed == {"'none'", "'self'", "data:"}


@pytest.mark.parametrize("file", ["absent.js", "LICENSE", "..%2Fdocs.py", SUMS.name])
def test_nothing_else_is_served_under_docs(shared_rig: Rig, file: str) -> None:
    response = shared_rig.http.get(f"/docs/{file}")
    assert (response.status_code, code(response)) == (404, "not_found")


@pytest.mark.long
def test_the_openapi_document_is_at_the_path_used_by_the_page(shared_rig: Rig) -> None:
    (place,) = re.findall(r'url: "([^"]+)"', (DIRECTORY / "start.js").read_text())
    document = shared_rig.http.get(urljoin("/docs", place)).json()
    assert document["info"]["title"] == "Sluiceway"
    assert not [path for path in document["paths"] if path.startswith("/docs")]


def bodies(document: dict[str, Any]) -> dict[str, tuple[str, str, Any]]:
    """Return method, path and example of each operation that takes a body."""
    return {
        operation["operationId"]: (
            method.upper(),
            path.replace("{", "").replace("}", ""),
            operation["requestBody"]["content"]["application/json"].get("example"),
        )
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
        if "requestBody" in operation
    }


@pytest.mark.long
def test_links_name_operations_and_their_parameters(rig: Rig) -> None:
    document = rig.http.get("/openapi.json").json()
    operations = {
        operation["operationId"]: operation
        for path in document["paths"].values()
        for operation in path.values()
    }
    linked = {
        name: link
        for name, operation in operations.items()
        for status, response in operation["responses"].items()
        if (link := response.get("links"))
    }
    assert linked.keys() == LINKS.keys()
    for links in linked.values():
        for link in links.values():
            target = operations[link["operationId"]]
            parameters = {parameter["name"] for parameter in target.get("parameters", ())}
            assert link.get("parameters", {}).keys() <= parameters
            assert "requestBody" in target or "requestBody" not in link


@pytest.mark.long
def test_every_body_has_an_example_that_the_gateway_accepts(rig: Rig) -> None:
    examples = bodies(rig.http.get("/openapi.json").json())
    assert examples.keys() == EXAMPLES.keys()
    for name, (method, path, example) in examples.items():
        path = path.replace("/id/", f"/{'0' * 32}/").replace("/slice", "/0")
        response = rig.http.request(method, path, json=example)
        # The channel and the endpoint of the examples do not exist.
        assert response.status_code in (200, 201, 404, 409), (name, response.text)
    assert rig.http.get("/v1/channels/name").json()["spec"]["partitions"] == 4


@pytest.mark.long
def test_operation_ids_are_short_and_stable(shared_rig: Rig) -> None:
    paths = shared_rig.http.get("/openapi.json").json()["paths"]
    ids = [
        operation["operationId"]
        for operations in paths.values()
        for operation in operations.values()
    ]
    assert sorted(ids) == OPERATIONS


def test_the_error_page_lists_every_code_with_status_and_advice(shared_rig: Rig) -> None:
    listed = error_codes()
    codes = [error_code.code for error_code in listed]
    assert codes == sorted(codes)
    assert set(codes) <= BY_CODE.keys()
    text = shared_rig.http.get("/docs/errors").text
    assert Page(text).inline == []
    for error_code in listed:
        row = re.search(f'<tr id="{error_code.code}">(.*)</tr>', text)
        assert row is not None
        assert f"<td>{error_code.status}</td>" in row[1]
        assert escape(error_code.advice) in row[1]


def test_pages_refer_only_to_existing_targets(rig: Rig) -> None:
    for path in ("/", "/docs/errors"):
        response = rig.http.get(path, headers={"Accept": "text/html,*/*;q=0.8"})
        assert response.headers["content-type"] == "text/html; charset=utf-8"
        assert "content-security-policy" in response.headers
        for reference in Page(response.text).references:
            assert not urlsplit(reference).netloc
            status = rig.http.get(urljoin(path, reference)).status_code
            # Without Kafka, its routes answer 503.
            assert status in (200, 503), reference


def test_the_root_is_json_for_programs_and_html_for_browsers(shared_rig: Rig) -> None:
    response = shared_rig.http.get("/")
    assert response.headers["content-type"] == "application/json"
    assert response.headers["vary"] == "Accept"
    body = response.json()
    assert (body["service"], body["version"]) == ("sluiceway", __version__)
    assert {"/docs", "/docs/errors", "/v1/channels", "/metrics", "/livez"} <= body["links"].keys()
