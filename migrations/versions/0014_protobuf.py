"""The format `protobuf`."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"

BEFORE = "format IN ('avro', 'arrow', 'json', 'bytes')"
AFTER = "format IN ('avro', 'arrow', 'json', 'protobuf', 'bytes')"
TABLES = ("channels", "kept_schemas")


def upgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        for table in TABLES:
            op.drop_constraint(f"ck_{table}_format", table)
            op.create_check_constraint("format", table, AFTER)
    else:
        _replace_text()


def _replace_text() -> None:
    """Replace the constraints in the tables' definitions.

    SQLite cannot change a CHECK. For changes that no stored row depends on, its documentation gives
    these steps (https://www.sqlite.org/lang_altertable.html).
    """
    connection = op.get_bind()
    version = connection.exec_driver_sql("PRAGMA schema_version").scalar_one()
    connection.exec_driver_sql("PRAGMA writable_schema = ON")
    try:
        for table in TABLES:
            changed = connection.execute(
                sa.text(
                    "UPDATE sqlite_master SET sql = replace(sql, :before, :after) "
                    "WHERE type = 'table' AND name = :name AND instr(sql, :before)"
                ),
                {"before": BEFORE, "after": AFTER, "name": table},
            )
            if changed.rowcount != 1:
                raise RuntimeError(f"the table {table} has no constraint {BEFORE}")
        connection.exec_driver_sql(f"PRAGMA schema_version = {version + 1}")
    finally:
        # A rollback does not end it.
        connection.exec_driver_sql("PRAGMA writable_schema = OFF")
