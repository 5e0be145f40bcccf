"""Restarts a failed writer and a hung reader; the previous reader is fenced.

The successor of a reader continues at its last commit. A reader that was replaced can no longer
commit.

SLUICEWAY_URL=http://127.0.0.1:8900 python examples/restart_and_fencing.py
"""

from dataclasses import dataclass

from sluiceway import Gateway, Heartbeat
from sluiceway.errors import CommitBeyondRead, Fenced, InvalidRecord, WriterFailed

# Short, because heartbeats report failed and finished writers, and a reader waits for the successor
# of a failed writer for the heartbeat timeout.
QUICK = Heartbeat(interval_ms=200, timeout_ms=2000)


@dataclass
class Task:
    """A record of the channel."""

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
                print("the planner failed after 50 tasks, which readers report")

        first = tasks.reader(group="workers")
        done = len(first.read(30, timeout=None))
        first.commit()
        done += len(first.read(10, timeout=None))
        print(f"the worker read {done} tasks, committed 30, and hangs")
        try:
            first.commit({0: 45})
        except CommitBeyondRead:
            print("a commit past the read tasks is refused")

        # A new worker in the same place.
        with tasks.reader(group="workers", on_lost_writer="wait") as second:
            print(f"its successor continues at task {second.read(1, timeout=None)[0]['number']}")
            # The restarted planner writes the remaining tasks.
            with tasks.writer(group="planner") as writer:
                writer.write(Task(number) for number in range(50, 60))
            print(f"and reads {sum(1 for _ in second)} more, to the end")
            second.commit()

        try:
            first.commit()
        except Fenced:
            print("the first worker continues, and is fenced")
        print(f"committed: {tasks.committed('workers')[0].offset} of 60")


if __name__ == "__main__":
    main()
