"""A Spark home that can be written to, and thrown away, without a copy of Spark."""

import importlib.util
from pathlib import Path

from sluiceway._version import install_command

# The workers of `local-cluster` keep a folder for each application in `work`, which for an
# installed pyspark lies among the packages. `python` has pyspark again, in an archive without
# compiled code, which Spark puts before the package: each new Python process would compile it anew.
_LEFT_OUT = ("work", "python")


def spark_home(directory: Path) -> Path:
    """Make `directory` a home of the installed Spark and return it, for SPARK_HOME.

    Everything in it is a link into the package. Python workers import pyspark from where their
    interpreter has it, as Spark's own archive of it is left out.
    """
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"pyspark is not installed: {install_command('demo')}")
    directory.mkdir(parents=True)
    for part in Path(spec.submodule_search_locations[0]).iterdir():
        if part.name not in _LEFT_OUT:
            (directory / part.name).symlink_to(part)
    return directory
