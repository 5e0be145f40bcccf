"""Exactly-once delivery: batches, committed offsets, visible runs, snapshots."""
