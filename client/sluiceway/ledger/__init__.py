"""Batches of exactly-once channels: delivered intervals, commits, leases, transactions."""

__all__: list[str] = []
