"""Tokens, scopes, and where the gateway may listen."""
