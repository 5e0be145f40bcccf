"""`sluiceway channels repair`: give up records that Kafka has lost, and let a channel go on."""

import click

from sluiceway.rest.ledger_models import RepairPlan
from sluiceway_gateway.cli.entry import (
    confirm,
    format_time,
    gateway_at,
    gateway_option,
    print_table,
    waiting_for,
    yes_option,
)
from sluiceway_gateway.cli.status import open_control


@click.command()
@click.argument("name")
@click.option(
    "--reason",
    default="repaired by the command line",
    show_default=True,
    help="Kept with the repair, which `channels commits` lists.",
)
@yes_option
@gateway_option
def repair(name: str, reason: str, yes: bool, url: str | None) -> None:
    """Repair the halted channel NAME: give up the committed records that Kafka has lost.

    Shows first what is lost. All open batches are aborted; queries and writers that had one start
    again. Keys that were committed stay so: write lost records again under other keys.
    """
    with open_control(url) as control:
        with waiting_for(gateway_at(url)):
            uid = control.channel(name).uid
            plan = control.ledger.repair_plan(name, uid=uid)
        _print_plan(name, plan)
        messages = sum(each.messages for each in plan.lost)
        if not yes:
            confirm(f"Give up {messages} committed messages, for good?", "repair", "changed")
        with waiting_for(f"{gateway_at(url)} to repair the channel {name}"):
            done = control.ledger.repair(name, plan, uid=uid, reason=reason)
    click.echo(f"channel {name} is repaired, by number {done.number} of its commits")


def _print_plan(name: str, plan: RepairPlan) -> None:
    click.echo(f"channel {name} is halted: {plan.cause}")
    click.echo()
    print_table(
        ("PARTITION", "LOST FROM", "COMMITTED UP TO", "COMMITTED MESSAGES"),
        [
            (str(each.partition), str(each.first), str(each.end), str(each.messages))
            for each in plan.lost
        ],
    )
    click.echo()
    if plan.open:
        print_table(
            ("ABORTED BATCH", "WRITER", "OPEN SINCE"),
            [(each.key, each.owner, format_time(each.since)) for each in plan.open],
        )
        click.echo()
