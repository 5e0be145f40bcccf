"""The command `sluiceway`."""

import sys
from collections.abc import Sequence

from sluiceway import install_command

_OWN = ("sluiceway", "sluiceway_gateway")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status.

    Client and gateway are one distribution, so the command also exists without the extra `gateway`
    that it needs. In that case it prints the command that installs the extra.
    """
    try:
        from sluiceway_gateway.cli.entry import main as run

        return run(arguments)
    except KeyboardInterrupt:
        # During the imports; as `entry.main` returns.
        return 130
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if not missing or missing in _OWN:
            raise
        sys.stderr.write(
            f"sluiceway: this command needs the package {missing}, which comes with the extra "
            f"'gateway': {install_command('gateway')}.\n"
        )
        return 1


__all__ = ["main"]
