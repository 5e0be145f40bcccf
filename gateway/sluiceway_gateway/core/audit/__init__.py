"""Audit trail: changes of channels, with principal, time, and old and new values."""
