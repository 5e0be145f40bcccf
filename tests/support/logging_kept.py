"""Logging as it was, after something configured it."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import structlog


@contextmanager
def logging_kept() -> Iterator[None]:
    """Let the block configure logging; put it back at its end."""
    root, access = logging.getLogger(), logging.getLogger("uvicorn.access")
    handlers, level, disabled = root.handlers[:], root.level, access.disabled
    configured = structlog.get_config()
    try:
        yield
    finally:
        root.handlers[:], access.disabled = handlers, disabled
        # Not by the attribute: loggers remember what they are enabled for.
        root.setLevel(level)
        structlog.configure(**configured)
