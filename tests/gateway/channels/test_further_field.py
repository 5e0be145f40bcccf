"""A further field of a channel's spec, in a copy of the gateway."""

import filecmp
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from sluiceway_gateway.core.db.revision import head

ROOT = Path(__file__).parents[3]
PARTS = ("gateway", "migrations")
MIGRATION = f"""
import sqlalchemy as sa
from alembic import op

revision = "further"
down_revision = "{head()}"


def upgrade() -> None:
    op.add_column("channels", sa.Column("note", sa.Text()))
"""
REQUESTS = """
import json
import sys

from gateways import code, result, running
from sluiceway_gateway.core.db.engine import Database
from sluiceway_gateway.migration import migrate

migrate(sys.argv[1])
with running(Database(sys.argv[1]), sys.argv[1]) as rig:
    channel = "/v1/channels/flights"
    answers = {
        "dry run": result(rig.http.put(f"{channel}?dry_run=true", json=json.loads(sys.argv[2]))),
        "after it": code(rig.http.get(channel)),
        "created": result(rig.put(note="first")),
        "read": result(rig.http.get(channel)),
        "refused": rig.put(note=1).json(),
        "kept": result(rig.put(partitions=2)),
        "changed": result(rig.put(note=None)),
        "audit": result(rig.http.get(f"{channel}/changes")),
        "openapi": result(rig.http.get("/openapi.json")),
    }
print(json.dumps(answers))
"""


def insert(path: Path, line: str, *, before: str) -> None:
    text = path.read_text()
    assert text.count(before) == 1
    path.write_text(text.replace(before, f"{line}\n{before}"))


def differing(copy: Path) -> set[str]:
    """Return the files that the repository does not have like this."""
    files = [path.relative_to(copy) for path in copy.rglob("*.py")]
    _, unequal, absent = filecmp.cmpfiles(ROOT, copy, map(str, files), shallow=False)
    return {*unequal, *absent}


def test_a_further_field_of_the_spec_is_a_line_of_the_model_and_a_column(tmp_path: Path) -> None:
    for part in PARTS:
        unneeded = shutil.ignore_patterns("__pycache__", "static", "swagger_ui")
        shutil.copytree(ROOT / part, tmp_path / part, ignore=unneeded)
    package = tmp_path / "gateway" / "sluiceway_gateway"
    model, tables = package / "channels" / "model.py", package / "channels" / "tables.py"
    insert(model, "    note: str | None = None", before="    idle_ms: int | None = Field(")
    insert(tables, '    Column("note", Word),', before='    Column("idle_ms", BigInteger),')
    (tmp_path / "migrations" / "versions" / "further.py").write_text(MIGRATION)
    assert differing(tmp_path) == {
        "gateway/sluiceway_gateway/channels/model.py",
        "gateway/sluiceway_gateway/channels/tables.py",
        "migrations/versions/further.py",
    }

    answers = answers_of(tmp_path, {"spec": {"format": "bytes", "note": "first"}})

    assert answers["dry run"]["spec"]["note"] == "first"
    assert answers["after it"] == "channel_not_found"
    for name in ("created", "read", "kept"):
        assert answers[name]["spec"]["note"] == "first"
    assert answers["refused"]["errors"][0]["pointer"] == "/spec/note"
    assert answers["changed"]["spec"]["note"] is None
    latest, _, first = answers["audit"]["items"]
    assert {"field": "note", "old": "first", "new": None} in latest["fields"]
    assert {"field": "note", "old": None, "new": "first"} in first["fields"]
    schemas = answers["openapi"]["components"]["schemas"]
    documented = {name for name in schemas if "note" in schemas[name].get("properties", {})}
    assert documented == {"Spec-Input", "Spec-Output"}
    # Clients of this version accept responses with such a field.
    assert schemas["Spec-Input"]["additionalProperties"] is False
    assert "additionalProperties" not in schemas["Spec-Output"]


def answers_of(copy: Path, body: dict[str, Any]) -> dict[str, Any]:
    """Return the answers of a gateway from the copy to `REQUESTS`."""
    paths = (copy / "gateway", ROOT / "tests" / "support", ROOT)
    done = subprocess.run(
        [sys.executable, "-c", REQUESTS, f"sqlite:///{copy / 'gateway.db'}", json.dumps(body)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
        cwd=copy,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    answers: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answers
