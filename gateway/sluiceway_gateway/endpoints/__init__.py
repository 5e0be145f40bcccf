"""Endpoints: attach, heartbeats, liveness, detach."""
