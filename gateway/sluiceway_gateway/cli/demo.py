"""`sluiceway demo`: the main job, from one command."""

import click


@click.command()
@click.option(
    "--json", "as_json", is_flag=True, help="Print the summary as JSON, on the last line."
)
def demo(as_json: bool) -> int:
    """Run flights through Spark, Kafka and a plain Python job.

    It starts a broker and a gateway on free ports and leaves nothing running. The exit status is
    0 only if every count and checksum agrees.
    """
    from sluiceway_gateway.demo.command import run

    return run(as_json=as_json)
