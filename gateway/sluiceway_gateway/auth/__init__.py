"""Tokens, scopes, bind addresses."""
