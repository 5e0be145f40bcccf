"""Schemas: versions of a channel's schema, and compatibility."""
