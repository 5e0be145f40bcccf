"""Schemas: the types of a channel's records, for clients and gateway."""

from sluiceway.schema.schema import Schema

__all__ = ["Schema"]
