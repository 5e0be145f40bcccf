"""Requests to the gateway and its responses, as values, with transport and authentication."""

__all__: list[str] = []
