"""Channels: model, changes, storage, requests."""
