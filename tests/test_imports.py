"""Dependencies point one way: read from the imports, wherever in a file they stand."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
GATEWAY = ROOT / "gateway" / "sluiceway_gateway"
CLIENT = ROOT / "client" / "sluiceway"

# A part of the gateway, and the other parts of it that it may import.
GATEWAY_PARTS = {
    "domain": set[str](),
    "store": {"domain"},
    "broker": {"domain"},
    "services": {"domain", "store", "broker"},
    "loops": {"domain", "store", "services", "broker", "settings", "metrics"},
    "http": {"domain", "store", "services", "settings", "metrics", "loops"},
    "embedded": set[str](),
}
# What belongs to one part alone.
ONLY_IN = {
    "sqlalchemy": {"store"},
    "alembic": {"store"},
    "confluent_kafka": {"broker", "embedded"},
    "fastapi": {"http", "app"},
    "starlette": {"http", "app"},
    "uvicorn": {"cli", "demo", "http"},
    "click": {"cli"},
}
# What the client's modules may never import, wherever they are.
NEVER_IN_CLIENT = {"sluiceway_gateway", "sqlalchemy", "fastapi", "pydantic", "click"}


@cache
def _imports(path: Path) -> tuple[str, ...]:
    return tuple(_imported(path))


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            yield str(node.module)
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _modules(root: Path) -> list[Path]:
    return sorted(root.rglob("*.py"))


def _part(path: Path) -> str:
    return path.relative_to(GATEWAY).parts[0].removesuffix(".py")


@pytest.mark.parametrize("part", GATEWAY_PARTS)
def test_a_part_of_the_gateway_imports_only_what_is_below_it(part: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in _modules(GATEWAY / part)
        for name in _imports(path)
        if name.startswith("sluiceway_gateway.")
        and name.split(".")[1] not in GATEWAY_PARTS[part] | {part}
    ]
    assert wrong == []


def test_the_domain_needs_the_standard_library_alone() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in _modules(GATEWAY / "domain")
        for name in _imports(path)
        if name.split(".")[0] not in sys.stdlib_module_names | {"sluiceway_gateway"}
    ]
    assert wrong == []


def test_each_foreign_library_has_its_one_place_in_the_gateway() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in _modules(GATEWAY)
        for name in _imports(path)
        if _part(path) not in ONLY_IN.get(name.split(".")[0], {_part(path)})
    ]
    assert wrong == []


# What both sides go by: the rules of schemas and of Kafka properties, and what keeps Kafka shut.
SHARED = (
    *("sluiceway.schema", "sluiceway.errors", "sluiceway._version"),
    *("sluiceway.kafka.config", "sluiceway.kafka.diagnosis"),
)


def test_the_gateway_shares_the_rules_of_schemas_with_the_client_and_nothing_else() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in _modules(GATEWAY)
        if _part(path) not in {"cli", "demo"}
        for name in _imports(path)
        if name.split(".")[0] == "sluiceway" and not name.startswith(SHARED)
    ]
    assert wrong == []


def test_the_client_never_imports_the_gateway() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in _modules(CLIENT)
        for name in _imports(path)
        if name.split(".")[0] in NEVER_IN_CLIENT
    ]
    assert wrong == []


def test_only_the_spark_part_of_the_client_imports_pyspark() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in _modules(CLIENT)
        if "spark" not in path.relative_to(CLIENT).parts
        for name in _imports(path)
        if name.split(".")[0] in {"pyspark", "py4j"} or name.startswith("sluiceway.spark")
    ]
    assert wrong == []


def test_only_the_pypz_part_of_the_client_imports_pypz() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in _modules(CLIENT)
        if "pypz" not in path.relative_to(CLIENT).parts
        for name in _imports(path)
        if name.split(".")[0] == "pypz" or name.startswith("sluiceway.pypz")
    ]
    assert wrong == []


def _loaded_of(names: set[str], program: str) -> set[str]:
    """Return which of these packages are loaded once `program` has run."""
    done = subprocess.run(
        [sys.executable, "-c", f"{program}\nimport sys\nprint(*{names} & sys.modules.keys())"],
        capture_output=True,
        text=True,
        check=True,
        timeout=480,
    )
    return set(done.stdout.split())


def test_the_whole_client_loads_neither_pyspark_nor_pandas() -> None:
    heavy = {"pyspark", "pandas", "sluiceway_gateway"}

    assert _loaded_of(heavy | {"pyarrow"}, "from sluiceway import *") == {"pyarrow"}


def test_what_may_refuse_to_serve_does_so_without_the_application() -> None:
    program = "from sluiceway_gateway.cli import demo, serve, up"

    assert _loaded_of({"fastapi"}, program) == set()


def test_the_gateway_loads_nothing_that_carries_records() -> None:
    program = "import sluiceway_gateway.cli.serve, sluiceway_gateway.app"

    assert _loaded_of({"fastapi", "httpx", "numpy", "pyarrow"}, program) == {"fastapi"}


@pytest.mark.parametrize("job", ["write_flights", "average_delays", "read_delays"])
def test_a_job_of_the_demo_loads_what_a_job_of_its_own_would(job: str) -> None:
    program = f"import sluiceway_gateway.demo.{job}"

    assert _loaded_of({"confluent_kafka", "fastapi", "sqlalchemy"}, program) == {"confluent_kafka"}


def test_modules_stay_short() -> None:
    long = {
        str(path.relative_to(ROOT)): lines
        for path in [*_modules(GATEWAY), *_modules(CLIENT)]
        if (lines := len(path.read_text().splitlines())) > 450
    }
    assert long == {}


# Where the wall clock is read: to date what is written down, and to show times to people.
WALL_CLOCKS = {"services/clock.py", "cli/token.py", "pypz/words.py"}


def test_nobody_waits_or_decides_by_the_wall_clock() -> None:
    wall = {("time", "time"), ("time", "time_ns"), ("datetime", "now"), ("datetime", "utcnow")}
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for root in (GATEWAY, CLIENT)
        for path in _modules(root)
        if path.relative_to(root).as_posix() not in WALL_CLOCKS and "demo" not in path.parts
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and (node.value.id, node.attr) in wall
    ]
    assert wrong == []
