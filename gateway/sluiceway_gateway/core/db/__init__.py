"""The database: engine, schema, migrations, leases, idempotency keys."""
