"""Tokens, scopes, and the addresses to listen on."""
