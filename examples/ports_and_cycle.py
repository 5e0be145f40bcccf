"""Jobs that pass orders on through ports, two of them in a cycle.

Two sources write to the channel `orders`. An input port of the first job reads it after all writers
have attached, and its output port writes each order to `audit` and to `todo`. The second job reads
`todo`, and writes the orders back to `orders`. Such a cycle never ends by itself; it ends when
`orders` is closed.

SLUICEWAY_URL=http://127.0.0.1:8900 python examples/ports_and_cycle.py
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from sluiceway import Channel, Gateway, Heartbeat, InputPort, OutputPort

ENOUGH = 60
# A short interval, because heartbeats report finished writers and requests to finish.
QUICK = Heartbeat(interval_ms=200)


@dataclass
class Order:
    """A record of the channels; `laps` counts its cycles."""

    id: int
    laps: int = 0


def source(orders: Channel, index: int) -> None:
    """Write five orders, as one of two replicas."""
    with orders.writer(group="source", index=index, size=2) as writer:
        writer.write(Order(id=5 * index + number) for number in range(5))


def distribute(orders: Channel, audit: Channel, todo: Channel) -> int:
    """Write each order to both channels, and close `orders` after enough of them."""
    seen = 0
    with (
        # Three writers: the two sources, and the job that returns orders.
        InputPort(orders, writers=3, all_open=True, open_timeout_s=60) as inlet,
        OutputPort([audit, todo], group="distributor") as outlet,
    ):
        for record in inlet:
            outlet.write(record)
            outlet.flush()
            seen += 1
            if seen == ENOUGH:
                # New writers are refused, and current ones are requested to finish.
                orders.close()
    return seen


def return_orders(todo: Channel, orders: Channel) -> int:
    """Write each order back to `orders`, until its writers are requested to finish."""
    handled = 0
    with (
        InputPort(todo, open_timeout_s=60) as inlet,
        OutputPort([orders], group="returns") as outlet,
    ):
        while not inlet.finished:
            for record in inlet.read(100, timeout=0.1):
                handled += 1
                if not outlet.finish_requested:
                    outlet.write(record | {"laps": record["laps"] + 1})
                    outlet.flush()
            if outlet.finish_requested:
                # Then the other job reads the rest and closes its port, which ends this job.
                outlet.close()
    return handled


def main() -> None:
    with Gateway() as gateway, ThreadPoolExecutor() as jobs:
        orders, audit, todo = (
            gateway.channel(name, schema=Order, partitions=2, heartbeat=QUICK)
            for name in ("ported-orders", "ported-audit", "ported-todo")
        )
        handling = jobs.submit(return_orders, todo, orders)
        distributing = jobs.submit(distribute, orders, audit, todo)
        for index in (0, 1):
            jobs.submit(source, orders, index).result()
        distributed, handled = distributing.result(), handling.result()
        orders.wait_until_closed()
        with audit.reader() as reader:
            audited = list(reader)
    print(f"enough orders were distributed: {distributed >= ENOUGH}")
    print(f"each was audited and handled: {distributed == handled == len(audited)}")
    print(f"distinct orders: {len({record['id'] for record in audited})}")


if __name__ == "__main__":
    main()
