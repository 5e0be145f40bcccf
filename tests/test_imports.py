"""Layers: dependencies point one way, by all imports of every file."""

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import sluiceway
from sluiceway import errors, spi

ROOT = Path(__file__).parents[1]
GATEWAY = ROOT / "gateway" / "sluiceway_gateway"
CLIENT = ROOT / "client" / "sluiceway"

#: Kinds of modules of the gateway, by their names: a module imports its own kind and those before.
GATEWAY_KINDS = (
    *("errors", "model", "db", "store", "kafka", "service", "settings", "api", "loops"),
    *("embedded", "app"),
)
#: Modules of the kind `model`: pure, with the standard library and pydantic alone.
MODELS = {
    *("model", "labels", "assignment", "topic", "topic_config", "change", "lag", "reader_progress"),
    *("provisioning.reconcile_result", "status.problems", "ledger.batches"),
    *("ledger.repairing", "channels.audited_fields", "endpoints.positions"),
    *("names", "preconditions", "api.models", "endpoints.attach_request"),
}
#: Modules of the kind `api` outside of the package of that name.
VIEWS = {"event_feed", "wire", "deps"}
#: Routes and JSON that take values of a store's rows; their statements stay in the store.
ROWS_IN_HTTP = {
    ("sessions/routes.py", "endpoints.session_store"),
    ("status/event_feed.py", "channels.store"),
    ("status/event_feed.py", "status.store"),
    ("status/routes.py", "status.store"),
    ("status/wire.py", "status.sample_store"),
    ("status/wire.py", "status.store"),
}
#: The layers of the client, the lowest first.
CLIENT_LAYERS = (
    *("errors", "config", "schema", "records", "api", "codecs", "kafka", "endpoint"),
    *("ledger", "channel", "spi", "facade"),
)
CLIENT_PACKAGES = {"schema", "records", "api", "codecs", "kafka", "endpoint", "ledger"}
CLIENT_FACADES = {"spark", "confluent", "broker", "pypz"}
# Libraries of one package.
ONLY_IN = {
    "sqlalchemy": {"db", "store"},
    "alembic": {"db"},
    "confluent_kafka": {"kafka", "embedded"},
    "fastapi": {"api", "app"},
    "starlette": {"api", "app"},
    "uvicorn": {"api", "app"},
    "click": {"app"},
}
# Modules that the client never imports.
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


def _kind(path: Path) -> str:
    """Return the kind of a module of the gateway, by its file's name and its package."""
    parts = path.relative_to(GATEWAY).with_suffix("").parts
    package, *_ = parts = parts[1:] if parts[0] in {"core", "dev"} else parts
    name = parts[-1]
    if len(parts) == 1 and name in {"errors", "clock", "tracing"}:
        return "errors"
    if package in {"cli", "demo", "up", "app"}:
        return "app"
    if package in {"embedded", "loops"}:
        return package
    if package in {"db", "passes", "migration"} or name == "tables":
        return "db"
    if package in {"settings", "telemetry", "logs"}:
        return "settings"
    if name in MODELS or ".".join(parts) in MODELS:
        return "model"
    if name.endswith("store") or name == "pruning":
        return "store"
    if name.endswith("routes") or name in VIEWS:
        return "api"
    if package in {"kafka", "api"}:
        return package
    return "service"


def _own_imports(path: Path, root: Path) -> Iterator[Path]:
    for name in _imports(path):
        module = (root.parent / Path(*name.split("."))).with_suffix(".py")
        if module.is_relative_to(root) and module.exists():
            yield module


def test_a_module_of_the_gateway_imports_its_own_kind_and_those_before() -> None:
    wrong = [
        f"{path.relative_to(GATEWAY)} imports {other.relative_to(GATEWAY)}"
        for path in _modules(GATEWAY)
        for other in _own_imports(path, GATEWAY)
        if path.name != "__init__.py"
        if GATEWAY_KINDS.index(_kind(other)) > GATEWAY_KINDS.index(_kind(path))
    ]
    assert wrong == []


def _client_layer(path: Path) -> str:
    parts = path.relative_to(CLIENT).with_suffix("").parts
    if parts[0] in {"errors", "concurrency", "runtime", "tracing"}:
        return "errors"
    if parts == ("kafka", "config"):
        return "config"
    if parts[0] in CLIENT_PACKAGES or parts == ("spi",):
        return parts[0]
    return "facade" if parts[0] in CLIENT_FACADES else "channel"


def test_a_module_of_the_client_imports_its_own_layer_and_those_below() -> None:
    wrong = [
        f"{path.relative_to(CLIENT)} imports {other.relative_to(CLIENT)}"
        for path in _modules(CLIENT)
        for other in _own_imports(path, CLIENT)
        if path.name != "__init__.py"
        if CLIENT_LAYERS.index(_client_layer(other)) > CLIENT_LAYERS.index(_client_layer(path))
    ]
    assert wrong == []


def _facade_modules() -> list[Path]:
    return [path for facade in sorted(CLIENT_FACADES) for path in _modules(CLIENT / facade)]


def _internal_imports(path: Path, facade: str) -> list[str]:
    """Return the imports of a facade's module that are neither public names, nor spi's, nor own."""
    modules = (sluiceway, errors, spi)
    listed = {f"{module.__name__}.{name}" for module in modules for name in module.__all__}
    listed |= {module.__name__ for module in modules}
    own = f"sluiceway.{facade}"
    return [
        name
        for name in _imported(path)
        if name.split(".")[0] == "sluiceway" and name not in listed
        if not f"{name}.".startswith(f"{own}.")
    ]


def test_the_facades_and_spark_import_public_names_and_those_of_spi() -> None:
    wrong = {
        str(path.relative_to(CLIENT)): imports
        for path in _facade_modules()
        if (imports := _internal_imports(path, path.relative_to(CLIENT).parts[0]))
    }
    assert wrong == {}


def test_an_import_from_inside_of_the_core_is_noticed(tmp_path: Path) -> None:
    module = tmp_path / "channel.py"
    module.write_text(
        "from sluiceway import Gateway, reader\n"
        "from sluiceway.broker.protocol import Message\n"
        "from sluiceway.confluent import Consumer\n"
        "from sluiceway.errors import Conflict, clear_tracebacks\n"
        "from sluiceway.kafka.topic import TopicIdentity\n"
        "from sluiceway.spi import Control, import_module\n"
        "def later():\n"
        "    import sluiceway.kafka\n"
    )
    assert _internal_imports(module, "broker") == [
        *("sluiceway.reader", "sluiceway.confluent", "sluiceway.confluent.Consumer"),
        *("sluiceway.errors.clear_tracebacks", "sluiceway.kafka.topic"),
        *("sluiceway.kafka.topic.TopicIdentity", "sluiceway.spi.import_module"),
        "sluiceway.kafka",
    ]


def test_each_name_of_spi_is_used_by_a_facade_or_spark() -> None:
    imports = {name for path in _facade_modules() for name in _imports(path)}
    assert [name for name in spi.__all__ if f"sluiceway.spi.{name}" not in imports] == []


def _package(module: str) -> str:
    """Return the package of a module of the gateway: `channels`, or `core.db`; empty for none."""
    _, *parts = module.removesuffix(".__init__").split(".")
    return ".".join(parts[: 2 if parts[:1] == ["core"] else 1])


def _imports_of_packages(root: Path) -> dict[str, dict[str, str]]:
    """Return for each package below `root` what it imports, with one of the imports."""
    packages: dict[str, dict[str, str]] = {}
    for path in _modules(root):
        module = ".".join((root.name, *path.relative_to(root).with_suffix("").parts))
        imports = packages.setdefault(_package(module), {})
        for name in _imports(path):
            package = _package(name) if name.startswith(f"{root.name}.") else ""
            if package not in {"", "core", _package(module)}:
                imports.setdefault(package, f"{path.relative_to(root)} imports {name}")
    return {name: imports for name, imports in packages.items() if name not in {"", "core"}}


def _layers() -> list[list[str]]:
    """Return the packages of the gateway by layer, as the documentation has them."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    table = re.search(r"packages of earlier lines:\n\n((?:    .+\n)+)", page)
    assert table is not None
    return [line.split() for line in table[1].splitlines()]


def _upward(packages: dict[str, dict[str, str]]) -> list[str]:
    layer_of = {name: number for number, layer in enumerate(_layers()) for name in layer}
    assert sorted(layer_of) == sorted(packages)
    return [
        where
        for name, imports in packages.items()
        for package, where in imports.items()
        if layer_of[package] >= layer_of[name]
    ]


def _circle(packages: dict[str, dict[str, str]]) -> list[str]:
    """Return the packages of a circle, if there is one."""
    try:
        TopologicalSorter(packages).prepare()
    except CycleError as error:
        circle: list[str] = error.args[1]
        return circle
    return []


def test_a_package_of_the_gateway_imports_packages_of_earlier_layers() -> None:
    packages = _imports_of_packages(GATEWAY)
    assert _upward(packages) == []
    assert _circle(packages) == []


def test_an_import_of_a_later_layer_is_noticed(tmp_path: Path) -> None:
    files = shutil.ignore_patterns("static", "swagger_ui", "__pycache__")
    root = shutil.copytree(GATEWAY, tmp_path / GATEWAY.name, ignore=files)
    with (root / "core" / "names.py").open("a") as file:
        file.write("from sluiceway_gateway.offsets import store\n")

    packages = _imports_of_packages(root)
    assert _upward(packages) == ["core/names.py imports sluiceway_gateway.offsets"]
    assert {"core.names", "offsets"} <= {*_circle(packages)}


def test_models_are_pure() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in _modules(GATEWAY)
        if _kind(path) == "model" and path.name != "__init__.py"
        for name in _imports(path)
        if name.split(".")[0]
        not in sys.stdlib_module_names | {"sluiceway_gateway", "pydantic", "pydantic_core"}
    ]
    assert wrong == []


def test_routes_and_json_hold_no_sql() -> None:
    imports = {
        (str(path.relative_to(GATEWAY)), ".".join(other.relative_to(GATEWAY).with_suffix("").parts))
        for path in _modules(GATEWAY)
        if _kind(path) == "api"
        for other in _own_imports(path, GATEWAY)
        if _kind(other) == "store"
    }
    assert imports <= ROWS_IN_HTTP


def test_each_third_party_library_is_imported_in_one_place_of_the_gateway() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in _modules(GATEWAY)
        for name in _imports(path)
        if _kind(path) not in ONLY_IN.get(name.split(".")[0], {_kind(path)})
    ]
    assert wrong == []


# Shared by both sides: the rules of schemas and Kafka properties, access problems, request ids,
# spans.
SHARED = (
    *("sluiceway.schema", "sluiceway.errors"),
    *("sluiceway.kafka.config", "sluiceway.kafka.diagnosis", "sluiceway.tracing"),
    *("sluiceway.__version__", "sluiceway.install_command"),
)
# Messages as people look at them; imported by the first request that needs them.
RECORDS = ("sluiceway.codecs", "sluiceway.records", "sluiceway.kafka.partitioner")


def test_the_gateway_imports_only_the_schema_rules_of_the_client() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in _modules(GATEWAY)
        if _kind(path) != "app"
        for name in _imports(path)
        if name.startswith("sluiceway.") and not name.startswith(SHARED)
        if not (path == GATEWAY / "messages" / "records.py" and name.startswith(RECORDS))
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


@pytest.mark.long
def test_checks_before_serving_do_not_import_the_application() -> None:
    program = "import sluiceway_gateway.cli.serve, sluiceway_gateway.dev.demo.command"

    assert _loaded_of({"fastapi"}, program) == set()


@pytest.mark.long
def test_the_gateway_loads_no_record_libraries() -> None:
    program = "import sluiceway_gateway.cli.serve, sluiceway_gateway.app"

    assert _loaded_of({"fastapi", "google.protobuf", "httpx", "numpy", "pyarrow"}, program) == {
        "fastapi"
    }


@pytest.mark.long
@pytest.mark.parametrize("job", ["write_flights", "average_delays", "read_delays"])
def test_a_demo_job_loads_only_what_a_standalone_job_loads(job: str) -> None:
    path = ROOT / "examples" / "demo" / f"{job}.py"
    program = f"import runpy, sys\nsys.path.insert(0, {str(path.parent)!r})\n"
    program += f"runpy.run_path({str(path)!r})"

    assert _loaded_of({"confluent_kafka", "fastapi", "sqlalchemy"}, program) == {"confluent_kafka"}


@pytest.mark.parametrize("package", [GATEWAY, CLIENT], ids=lambda path: path.name)
def test_a_class_name_occurs_once_in_a_package(package: Path) -> None:
    modules: dict[str, list[str]] = {}
    # The asynchronous interface has the names of the synchronous one.
    for path in filter(lambda path: path.name != "aio.py", _modules(package)):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                modules.setdefault(node.name, []).append(str(path.relative_to(package)))
    assert {name: paths for name, paths in modules.items() if len(paths) > 1} == {}


# Uses of the wall clock: to date stored rows, and to show times to people.
WALL_CLOCKS = {"core/clock.py", "cli/token.py", "pypz/status.py"}


def test_no_module_waits_or_decides_by_the_wall_clock() -> None:
    wall = {("time", "time"), ("time", "time_ns"), ("datetime", "now"), ("datetime", "utcnow")}
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for root in (GATEWAY, CLIENT)
        for path in _modules(root)
        if path.relative_to(root).as_posix() not in WALL_CLOCKS
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and (node.value.id, node.attr) in wall
    ]
    assert wrong == []
