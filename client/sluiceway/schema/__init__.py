"""Schemas: what the records of a channel look like, the same on both sides of the wire."""

from sluiceway.schema.schema import Schema

__all__ = ["Schema"]
