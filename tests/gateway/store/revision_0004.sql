-- Rows as gateways of revision 0004 left them, for SQLite and PostgreSQL (with TIME ZONE UTC).
-- Only what both write in the same way: times of UTC without a zone, JSON as text.

INSERT INTO schemas (id, fingerprint, definition, created_at) VALUES
  (1, '113f3e604af24530f473c5d02f86424d379e215588635a6f56b0b6f22290e103',
   '{"type":"record","name":"Flight","fields":[{"name":"carrier","type":"string"},{"name":"delay","type":["null","double"],"default":null}]}',
   '2026-01-02 03:04:05.000000'),
  (2, '41229c41a258ea6187bd1c0d8ea3c93c0987b4cbf331ed2da55c14de6ebcf80a',
   '{"type":"record","name":"Reading","fields":[{"name":"station","type":"string"},{"name":"celsius","type":"double"}]}',
   '2026-01-02 03:04:06.500000');

INSERT INTO channels (
  uid, name, labels, generation, revision, created_at, schema_id, schema_version, format,
  partitions, pinned, replication, retention_ms, retention_bytes, config, phase,
  observed_generation, conditions, topic_name, topic_id, topic_partitions, keep_topic, due_at,
  refusals, compatibility, adopted, mirrored, closing, idle_ms, used_at
) VALUES
  ('00000000000000000000000000000001', 'flights', '{"team": "fares"}', 2, 5,
   '2026-01-02 03:04:05.000000', 1, 1, 'avro', 4, FALSE, NULL, 86400000, NULL,
   '{"min.insync.replicas": "1"}', 'ready', 2,
   '[{"type": "Ready", "status": "True", "reason": "TopicCreated", "message": "The topic sluiceway.flights-00000000 is there.", "last_transition_at": "2026-01-02T03:04:06+00:00"}, {"type": "Synced", "status": "True", "reason": "UpToDate", "message": "The topic is as the spec asks.", "last_transition_at": "2026-01-02T03:04:06+00:00"}]',
   'sluiceway.flights-00000000', 'dG9waWMtb2YtZmxpZ2h0cw', 4, FALSE,
   '2999-01-01 00:00:00.000000', 0, 'backward', FALSE, TRUE, FALSE, 604800000, '2026-01-02 03:04:05.000000'),
  ('00000000000000000000000000000002', 'readings', '{}', 1, 1, '2026-01-02 03:04:06.500000', 2, 1,
   'arrow', 8, TRUE, 1, NULL, 1073741824, '{}', 'provisioning', 0, '[]',
   'sluiceway.readings-00000000', NULL, NULL, FALSE, '2999-01-01 00:00:00.000000', 3, 'backward', FALSE, FALSE, FALSE, NULL, NULL),
  ('00000000000000000000000000000003', 'lost', '{}', 1, 4, '2026-01-02 03:04:07.000000', 1, 1,
   'avro', 1, FALSE, NULL, -1, -1, '{}', 'failed', 1,
   '[{"type": "Ready", "status": "False", "reason": "TopicMissing", "message": "The topic is gone.", "last_transition_at": "2026-01-02T03:05:00+00:00"}]',
   'sluiceway.lost-00000000', 'dG9waWMtdGhhdC1pcy1sb3N0', 1, FALSE,
   '2999-01-01 00:00:00.000000', 1, 'backward', FALSE, FALSE, FALSE, NULL, NULL),
  ('00000000000000000000000000000004', 'leaving', '{}', 1, 3, '2026-01-02 03:04:08.000000', 1, 1,
   'avro', 1, FALSE, NULL, NULL, NULL, '{}', 'deleting', 1, '[]',
   'sluiceway.leaving-00000000', 'dG9waWMtdGhhdC1pcy1rZXB0', 1, TRUE,
   '2999-01-01 00:00:00.000000', 0, 'backward', FALSE, FALSE, FALSE, NULL, NULL);

INSERT INTO channel_schemas (channel_uid, version, schema_id, created_at) VALUES
  ('00000000000000000000000000000001', 1, 1, '2026-01-02 03:04:09.000000'),
  ('00000000000000000000000000000002', 1, 2, '2026-01-02 03:04:09.000000'),
  ('00000000000000000000000000000003', 1, 1, '2026-01-02 03:04:09.000000'),
  ('00000000000000000000000000000004', 1, 1, '2026-01-02 03:04:09.000000');

INSERT INTO kept_schemas (topic_id, version, schema_id, created_at, format) VALUES
  ('dG9waWMtdGhhdC1vdXRsaXZlZA', 1, 2, '2026-01-02 03:04:10.000000', 'arrow');

INSERT INTO leases (name, holder, epoch, expires_ms) VALUES
  ('reconcile', 'host:1:abcdef01', 7, 1767323045000);

-- The secret of both is 64 times the digit 1, the key 40 times the letter k.
INSERT INTO tokens (id, label, hash, scopes, created_at, expires_at, revoked_at) VALUES
  ('0000000000000000', 'in use',
   '075ef86b2415a09e6a08fc515dddd8182928a477e01ac5dca8d4661ebfc29410', '["admin"]',
   '2026-01-02 03:04:05.000000', NULL, NULL),
  ('0000000000000001', 'revoked',
   '075ef86b2415a09e6a08fc515dddd8182928a477e01ac5dca8d4661ebfc29410', '["read:sales."]',
   '2026-01-02 03:04:05.000000', '2030-01-01 00:00:00.000000', '2026-02-01 00:00:00.000000');

INSERT INTO requests (principal, key, digest, status, headers, body, created_at) VALUES
  ('0000000000000000', 'asked-before', 'a digest', 201, '{"etag": "\"00000000.1.1\""}', '{}',
   '2029-12-31 23:59:59.000000');

INSERT INTO sessions (id, beat, started_at, client) VALUES
  ('00000000000000000000000000000005', 12, '2026-01-02 03:05:00.000000', 'sluiceway/0.1');

INSERT INTO endpoint_groups (channel_uid, role, name, mode, size, generation, epoch, next_index, dynamic) VALUES
  ('00000000000000000000000000000001', 'reader', 'delays', 'shared', 2, 3, 4, 0, FALSE),
  ('00000000000000000000000000000001', 'writer', '', 'shared', NULL, 1, 1, 1, FALSE);

INSERT INTO endpoints (
  id, channel_uid, session_id, role, group_name, member_index, size, mode, epoch, generation, state,
  health, superseded, cause, attached_at, changed_at, counters, payload, ends, lost_at, commits, reached,
  title
) VALUES
  ('00000000000000000000000000000006', '00000000000000000000000000000001',
   '00000000000000000000000000000005', 'reader', 'delays', 1, 2, 'shared', 4, 3, 'started',
   'healthy', FALSE, NULL, '2026-01-02 03:05:00.000000', '2026-01-02 03:05:01.000000',
   '{"records": 40}', '{"step": 1}', NULL, NULL, 2, '{"1": [30, 0]}', NULL),
  ('00000000000000000000000000000007', '00000000000000000000000000000001',
   '00000000000000000000000000000005', 'writer', '', 0, NULL, 'shared', 1, 1, 'closed', 'healthy',
   FALSE, NULL, '2026-01-02 03:05:00.000000', '2026-01-02 03:05:02.000000', '{"records": 99}',
   NULL, '{"0": 50, "1": 49}', NULL, 0, NULL, 'nightly');

INSERT INTO endpoint_events (channel_uid, endpoint_id, group_name, at, state, health, cause, by)
VALUES
  ('00000000000000000000000000000001', '00000000000000000000000000000006', 'delays',
   '2026-01-02 03:05:00.000000', 'opened', 'healthy', NULL, '0000000000000000');

INSERT INTO positions (
  channel_uid, group_name, member_index, partition, next_offset, record, topic_id, epoch, number,
  committed_at
) VALUES
  ('00000000000000000000000000000001', 'delays', -1, 1, 20, 0, 'dG9waWMtb2YtZmxpZ2h0cw', 4, 2,
   '2026-01-02 03:05:03.000000');

INSERT INTO endpoint_tasks (endpoint_id, task, attempt, state, counters, changed_at) VALUES
  ('00000000000000000000000000000007', '0', 0, 'done', '{"records": 99}',
   '2026-01-02 03:05:02.000000');

INSERT INTO samples (channel_uid, number, at, document) VALUES
  ('00000000000000000000000000000001', 1, '2026-01-02 03:05:04.000000',
   '{"starts": [0, 0, 0, 0], "ends": [50, 49, 0, 0], "tracks": {}, "counted": "", "paces": {}, "outline": {"lag_messages": null, "behind_since": null, "progress": null, "write_rate": null}}');
