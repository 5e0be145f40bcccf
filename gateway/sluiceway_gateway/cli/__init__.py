"""The command `sluiceway`."""

from sluiceway_gateway.cli.entry import main

__all__ = ["main"]
