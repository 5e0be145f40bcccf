"""Giving up what nobody waits for any more."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import Request

T = TypeVar("T")


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T | None:
    """Return what `work` gives; None if the client went away first, then it is cancelled."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_departure(request))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        for each in (task, gone):
            each.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _departure(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
