"""Audit trail: who changed a channel, when, and from what to what."""
