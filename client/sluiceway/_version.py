"""The one version of both sides of the wire, and how to install it."""

__version__ = "0.1.0"


def install_command(*extras: str) -> str:
    """Return the command that installs this version with some extras, for error messages."""
    target = f"'.[{','.join(extras)}]'" if extras else "."
    return f"`pip install {target}` in a checkout of sluiceway {__version__}"
