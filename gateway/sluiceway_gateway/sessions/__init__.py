"""Heartbeats of clients' sessions over HTTP: above the ledger, whose leases they renew."""
