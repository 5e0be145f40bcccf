"""Closes a channel while it is written and read, and deletes it.

SLUICEWAY_URL=http://127.0.0.1:8900 python examples/close_and_delete.py
"""

from dataclasses import dataclass
from datetime import timedelta
from time import sleep

from sluiceway import Gateway, Heartbeat
from sluiceway.errors import ChannelClosed, Conflict, SluicewayTimeout

# A short interval, because heartbeats report finished writers.
QUICK = Heartbeat(interval_ms=200)


@dataclass
class Sale:
    """A record of the channel."""

    till: int
    cents: int


def main() -> None:
    with Gateway() as gateway:
        # An unused channel is closed after a week and deleted after two.
        sales = gateway.channel(
            "todays-sales", schema=Sale, heartbeat=QUICK, idle=timedelta(days=7)
        )
        with sales.writer(group="tills") as tills:
            tills.write(Sale(till=number % 3, cents=100 + number) for number in range(99))
            sales.close()
            print(f"phase: {sales.status.phase}")
            try:
                sales.writer()
            except ChannelClosed:
                print("a new writer is refused")
            tills.write(Sale(till=0, cents=1))

        with sales.reader(group="books") as books:
            total = sum(record["cents"] for record in books)
            print(f"{total} cents")
            # The gateway learns soon that the writer has ended, and what is left to read.
            while "books" not in sales.refresh().status.explain():
                sleep(0.1)
            try:
                sales.wait_until_closed(1)
            except SluicewayTimeout as error:
                print(str(error).split(". ")[0])
            try:
                sales.delete()
            except Conflict as error:
                print(f"not deleted: {error.code}")
            books.commit()
        sales.wait_until_closed()
        print(f"phase: {sales.status.phase}")
        sales.delete()
        print("deleted")


if __name__ == "__main__":
    main()
