"""Tables on standard output, a row a line, whatever the terminal's width."""

from collections.abc import Iterable

from rich.console import Console
from rich.table import Table

#: Rows are never cut or folded: programs read them too, and a terminal wraps by itself.
_WIDTH = 100_000


def print_table(columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> None:
    """Print the rows under their columns' names."""
    table = Table(*columns, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*row)
    Console(width=_WIDTH, highlight=False, markup=False, emoji=False).print(table)
