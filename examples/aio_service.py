"""A FastAPI service takes orders, and a background task of it adds up all that the channel has.

The writer and the reader live as long as the service, which answers other requests while their
calls are awaited.

SLUICEWAY_URL=http://127.0.0.1:8900 uvicorn --app-dir examples aio_service:app --port 8080
curl -d '{"item": "tea", "cents": 250}' -H 'Content-Type: application/json' localhost:8080/orders
curl localhost:8080/total
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from fastapi import FastAPI

from sluiceway import aio


@dataclass
class Order:
    """A record of the channel, and the body of a request."""

    item: str
    cents: int


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with aio.Gateway() as gateway:
        channel = await gateway.channel("shop-orders", schema=Order)
        async with (
            channel.writer(group="shop") as writer,
            channel.reader(until=None) as reader,
            asyncio.TaskGroup() as tasks,
        ):
            app.state.writer, app.state.cents = writer, 0
            adding = tasks.create_task(add_up(app, reader))
            yield
            adding.cancel()


async def add_up(app: FastAPI, reader: aio.Reader) -> None:
    """Add up the orders, from the first one on."""
    async for record in reader:
        app.state.cents += record["cents"]


app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=201)
async def create_order(order: Order) -> None:
    """Answer when Kafka has the order."""
    await app.state.writer.write(order)
    await app.state.writer.flush()


@app.get("/total")
async def total() -> dict[str, int]:
    return {"cents": app.state.cents}
