"""Pauses of Python's garbage collector."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["gc_paused"]


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause the garbage collector while the block creates thousands of objects that all stay.

    The collector runs after every 700 new objects, and over all objects after every quarter more.
    Without the pause, reading records as dicts has 0.78 of its speed (`bench/python.py`). For
    short blocks: the collector is paused for the whole process.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
