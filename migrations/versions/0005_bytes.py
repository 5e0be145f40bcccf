"""Channels of the format `bytes`: one more word that two checks allow. Expands only."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

BEFORE = "format IN ('avro', 'arrow')"
AFTER = "format IN ('avro', 'arrow', 'bytes')"
TABLES = ("channels", "kept_schemas")


def upgrade() -> None:
    if op.get_bind().dialect.name == "sqlite":
        _sqlite()
        return
    for table in TABLES:
        op.drop_constraint(op.f(f"ck_{table}_format"), table, type_="check")
        op.create_check_constraint(op.f(f"ck_{table}_format"), table, AFTER)


def _sqlite() -> None:
    """Change the tables' text, as SQLite's own documentation says (lang_altertable, 7).

    No row is touched; to make the tables anew would take each of them with all that refers to it.
    """
    connection = op.get_bind()
    version = connection.exec_driver_sql("PRAGMA schema_version").scalar_one()
    op.execute("PRAGMA writable_schema = ON")
    changed = connection.execute(
        sa.text(
            "UPDATE sqlite_master SET sql = replace(sql, :before, :after)"
            " WHERE type = 'table' AND name IN ('channels', 'kept_schemas')"
            " AND instr(sql, :before) > 0"
        ),
        {"before": BEFORE, "after": AFTER},
    )
    op.execute(f"PRAGMA schema_version = {version + 1}")
    op.execute("PRAGMA writable_schema = OFF")
    if changed.rowcount != len(TABLES):
        raise RuntimeError(f"the check of formats was found in {changed.rowcount} of {TABLES}")
