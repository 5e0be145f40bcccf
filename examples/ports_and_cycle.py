"""Three jobs hand orders on through ports, and two of them to each other until somebody says stop.

Two sources write to the channel `orders`; a port of the first job reads what both have written,
after both have come. Its other port writes each order to `audit` and to `todo`. From `todo` the
second job takes an order, and hands what is left of it back through `orders`: a cycle, which has
no end of its own. It ends when `orders` is closed.

SLUICEWAY_URL=http://127.0.0.1:8900 python examples/ports_and_cycle.py
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from sluiceway import Channel, Gateway, Heartbeat, InputPort, OutputPort

ENOUGH = 60
# Beats tell who has finished, and that somebody should.
QUICK = Heartbeat(interval_ms=200)


@dataclass
class Order:
    """What goes round."""

    id: int
    laps: int = 0


def source(orders: Channel, index: int) -> None:
    """Write five orders, as one of two replicas."""
    with orders.writer(group="source", index=index, size=2) as writer:
        writer.write(Order(id=5 * index + number) for number in range(5))


def distribute(orders: Channel, audit: Channel, todo: Channel) -> int:
    """Write each order to both channels, until enough went round."""
    seen = 0
    with (
        # Three writers: the two sources, and the job that hands orders back.
        InputPort(orders, writers=3, all_open=True, open_timeout_s=60) as inlet,
        OutputPort([audit, todo], group="distributor") as outlet,
    ):
        for record in inlet:
            outlet.write(record)
            outlet.flush()
            seen += 1
            if seen == ENOUGH:
                # Nobody else comes to write orders, and who writes is asked to finish.
                orders.close()
    return seen


def hand_back(todo: Channel, orders: Channel) -> int:
    """Hand each order back, until that is wanted no more."""
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
                # The end goes round: the other job reads what is left, closes its port, and so
                # this one comes to its end as well.
                outlet.close()
    return handled


def main() -> None:
    with Gateway() as gateway, ThreadPoolExecutor() as jobs:
        orders, audit, todo = (
            gateway.channel(name, schema=Order, partitions=2, heartbeat=QUICK)
            for name in ("ported-orders", "ported-audit", "ported-todo")
        )
        handling = jobs.submit(hand_back, todo, orders)
        distributing = jobs.submit(distribute, orders, audit, todo)
        for index in (0, 1):
            jobs.submit(source, orders, index).result()
        distributed, handled = distributing.result(), handling.result()
        orders.wait_until_closed()
        with audit.reader() as reader:
            audited = list(reader)
    print(f"enough orders went round: {distributed >= ENOUGH}")
    print(f"each of them was audited and handled: {distributed == handled == len(audited)}")
    print(f"of {len({record['id'] for record in audited})} orders")


if __name__ == "__main__":
    main()
