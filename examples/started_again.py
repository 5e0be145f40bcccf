"""A job fails in the middle and is started again; the one before it wakes up late, and is fenced.

What is committed is never read again, what was not is. Nothing of the channel is lost by an error,
and a job that was given up cannot undo what its successor has committed.

SLUICEWAY_URL=http://127.0.0.1:8900 python examples/started_again.py
"""

from dataclasses import dataclass

from sluiceway import Gateway, Heartbeat
from sluiceway.errors import CommitBeyondRead, Fenced, InvalidRecord, WriterFailed

# Heartbeats tell who failed and who has finished. A reader waits for a failed writer to be
# started again, for the channel's heartbeat timeout.
QUICK = Heartbeat(interval_ms=200, timeout_ms=2000)


@dataclass
class Task:
    """What one record of the channel looks like."""

    number: int


def main() -> None:
    with Gateway() as gateway:
        tasks = gateway.channel("tasks-to-do", schema=Task, heartbeat=QUICK)

        try:
            with tasks.writer(group="planner") as writer:
                writer.write(Task(number) for number in range(50))
                writer.flush()
                writer.write({"number": "fifty"})
        except InvalidRecord:
            try:
                list(tasks.reader())
            except WriterFailed:
                print("the planner failed after 50 tasks, and whoever reads them is told")

        first = tasks.reader(group="workers")
        done = len(first.read(30, timeout=None))
        first.commit()
        done += len(first.read(10, timeout=None))
        print(f"the worker did {done} tasks, of which 30 are committed, and hangs")
        try:
            first.commit({0: 45})
        except CommitBeyondRead:
            print("what it did not read it cannot commit")

        # Somebody starts another in its place.
        with tasks.reader(group="workers", on_lost_writer="wait") as second:
            print(f"another goes on at task {second.read(1, timeout=None)[0]['number']}")
            # The planner is started again as well, and takes up where it failed.
            with tasks.writer(group="planner") as writer:
                writer.write(Task(number) for number in range(50, 60))
            print(f"and does {sum(1 for _ in second)} more, to the end")
            second.commit()

        try:
            first.commit()
        except Fenced:
            print("the first worker wakes up: fenced")
        print(f"committed: {tasks.committed('workers')[0].offset} of 60")


if __name__ == "__main__":
    main()
