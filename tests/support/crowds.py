"""Databases with very many rows, made by the database itself."""

from sqlalchemy import text

from sluiceway_gateway.db.engine import Database

_SERIES = {
    "postgresql": "generate_series(0, {last}) AS n(i)",
    "sqlite": "(WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < {last})"
    " SELECT i FROM n) AS n",
}
_NOW = {
    "postgresql": "'2030-01-01 00:00:00+00'",
    "sqlite": "'2030-01-01 00:00:00.000000'",
}
_STATEMENTS = (
    "INSERT INTO schemas (id, fingerprint, definition, created_at) VALUES (1, 'f', 'd', {now})",
    """
    INSERT INTO channels (uid, name, labels, generation, revision, created_at, schema_id,
        schema_version, format, partitions, pinned, config, phase, observed_generation, conditions,
        topic_name, topic_id, topic_partitions, keep_topic, due_at, refusals, mirrored, idle_ms,
        compatibility, adopted, heartbeat_interval_ms, heartbeat_timeout_ms)
    SELECT 'uid-' || i, 'channel-' || i, '{{}}', 1, 1, {now}, 1, 1, 'avro', 1, false, '{{}}',
        'ready', 1, '[]', 'topic-' || i, 'id', 1, false, {now}, 0, true, 86400000,
        'backward', false, 2000, 120000
    FROM {channels}
    """,
    """
    INSERT INTO sessions (id, beat, started_at, client)
    SELECT 'session-' || i, 0, {now}, '' FROM {endpoints}
    """,
    """
    INSERT INTO endpoints (id, channel_uid, session_id, role, group_name, member_index, mode, epoch,
        generation, state, health, superseded, attached_at, changed_at, counters, commits)
    SELECT 'endpoint-' || i, 'uid-' || (i % {count}), 'session-' || i, 'writer', '', i, 'shared', 1,
        1, 'started', 'healthy', false, {now}, {now}, '{{}}', 0
    FROM {endpoints}
    """,
    """
    INSERT INTO endpoint_groups (channel_uid, role, name, mode, generation, epoch, next_index,
        dynamic)
    SELECT 'uid-' || i, 'writer', '', 'shared', 1, 1, {number}, false FROM {channels}
    """,
    """
    INSERT INTO positions (channel_uid, group_name, member_index, partition, next_offset, record,
        topic_id, epoch, number, committed_at)
    SELECT 'uid-' || (i % {count}), 'g' || i, -1, 0, 1, 0, 'id', 1, 1, {now} FROM {endpoints}
    """,
)


def crowd(database: Database, *, channels: int, endpoints: int) -> None:
    """Fill a migrated database: writers, each of a session of its own, and as many positions.

    Channels share the writers evenly; all are mirrored, and come to their end by being idle.
    """
    series = _SERIES[database.dialect]
    with database.write() as tx:
        for statement in _STATEMENTS:
            tx.execute(
                text(
                    statement.format(
                        channels=series.format(last=channels - 1),
                        endpoints=series.format(last=endpoints - 1),
                        now=_NOW[database.dialect],
                        count=channels,
                        number=endpoints,
                    )
                )
            )
        # As autovacuum does, which tests have not: plans go by what it counts.
        tx.execute(text("ANALYZE"))
