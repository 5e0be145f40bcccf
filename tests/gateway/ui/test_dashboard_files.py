"""The dashboard's page and files, as the gateway serves them."""

import gzip
import hashlib
import re
from base64 import b64encode
from pathlib import Path

import pytest

from gateways import Rig, code
from sluiceway_gateway.ui import routes

DIRECTORY = Path(routes.__file__).parent / "static"
AXE = Path(__file__).parents[2] / "support" / "axe"
VENDORED = sorted((DIRECTORY / "vendor").iterdir())
BROWSER = {"Accept": "text/html,*/*;q=0.8"}
MODULES = sorted(DIRECTORY.glob("*.js"))


@pytest.mark.parametrize("directory", [*VENDORED, AXE], ids=lambda directory: directory.name)
def test_vendored_files_are_exactly_those_of_their_packages(directory: Path) -> None:
    (sums,) = directory.glob("*.sha256")
    sum_of = {name: sum_ for sum_, name in (line.split() for line in sums.read_text().splitlines())}
    assert {path.name for path in directory.iterdir()} == {sums.name, *sum_of}
    assert "LICENSE" in sum_of
    for name, expected in sum_of.items():
        assert hashlib.sha256((directory / name).read_bytes()).hexdigest() == expected, name


def test_every_import_is_of_a_file_or_in_the_import_map(shared_rig: Rig) -> None:
    page = shared_rig.http.get("/", headers=BROWSER).text
    mapped = dict(re.findall(r'"([^"]+)": "\./ui/([^"]+)"', page))
    for path in mapped.values():
        assert shared_rig.http.get(f"/ui/{path}").status_code == 200, path
    for module in MODULES:
        for name in re.findall(r'(?:from|import\()\s*"([^"]+)"', module.read_text()):
            assert name in mapped or (DIRECTORY / name).exists(), f"{module.name}: {name}"


def test_what_the_first_view_needs_is_preloaded() -> None:
    page = (DIRECTORY / "index.html").read_text()
    needed, seen = ["main.js"], set()
    while needed:
        module = needed.pop()
        seen.add(module)
        text = (DIRECTORY / module).read_text()
        imported = {name.removeprefix("./") for name in re.findall(r'from "(\./[^"]+)"', text)}
        needed += imported - seen
    preloaded = set(re.findall(r'modulepreload" href="ui/([^"/]+)"', page))
    assert seen - {"main.js"} == preloaded


def test_libraries_of_charts_and_graphs_are_loaded_when_they_are_shown() -> None:
    text = "".join(module.read_text() for module in MODULES)
    assert re.findall(r'from "\./vendor/', text) == []
    dynamic = set(re.findall(r'import\("\./vendor/([^/]+)/', text))
    assert dynamic == {"dagre", "uplot"}


def test_own_modules_never_parse_text_as_html_or_code() -> None:
    for module in MODULES:
        text = module.read_text()
        for forbidden in (
            "innerHTML",
            "outerHTML",
            "insertAdjacent",
            "eval(",
            "Function(",
            "http:",
        ):
            assert forbidden not in text, f"{module.name}: {forbidden}"


def test_the_policy_allows_the_gateway_and_the_import_map_alone(shared_rig: Rig) -> None:
    response = shared_rig.http.get("/", headers=BROWSER)
    policy = response.headers["content-security-policy"]
    rules = dict(directive.strip().split(" ", 1) for directive in policy.split(";"))
    (inline,) = re.findall(r'<script type="importmap">(.*?)</script>', response.text, re.DOTALL)
    digest = b64encode(hashlib.sha256(inline.encode()).digest()).decode()
    assert rules["default-src"] == "'none'"
    assert rules["script-src"] == f"'self' 'sha256-{digest}'"
    assert rules["style-src"] == rules["connect-src"] == "'self'"
    assert rules["frame-ancestors"] == "'none'"
    assert rules["require-trusted-types-for"] == "'script'"
    assert re.findall(r"<style|style=|\son\w+=", response.text) == []
    assert re.findall(r"<script(?! type=\"(?:importmap\"|module\" src=))", response.text) == []


def test_files_are_compressed_and_revalidated(shared_rig: Rig) -> None:
    plain = shared_rig.http.get("/ui/main.js", headers={"Accept-Encoding": "identity"})
    assert plain.headers["content-type"] == "text/javascript; charset=utf-8"
    assert "content-encoding" not in plain.headers
    packed = shared_rig.http.get("/ui/main.js", headers={"Accept-Encoding": "gzip"})
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.headers["vary"] == "Accept-Encoding"
    assert packed.content == plain.content == (DIRECTORY / "main.js").read_bytes()
    assert int(packed.headers["content-length"]) == len(gzip.compress(plain.content, 9))
    again = shared_rig.http.get("/ui/main.js", headers={"If-None-Match": plain.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    page = shared_rig.http.get("/", headers=BROWSER)
    assert page.headers["vary"] == "Accept, Accept-Encoding"


@pytest.mark.parametrize(
    "file", ["absent.js", "vendor/preact/LICENSE", "../routes.py", "..%2Froutes.py", ""]
)
def test_nothing_else_is_served_below_ui(shared_rig: Rig, file: str) -> None:
    response = shared_rig.http.get(f"/ui/{file}")
    assert (response.status_code, code(response)) == (404, "not_found")
