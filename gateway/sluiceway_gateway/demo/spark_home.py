"""A Spark home that can be written to, and thrown away, without a copy of Spark."""

import importlib.util
from pathlib import Path


def spark_home(directory: Path) -> Path:
    """Make `directory` a home of the installed Spark and return it, for SPARK_HOME.

    The workers of `local-cluster` keep a folder for each application in Spark's home, which for
    an installed pyspark lies among the packages. Here everything is a link into the package but
    that folder.
    """
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("pyspark is not installed: pip install 'sluiceway[demo]'")
    directory.mkdir(parents=True)
    for part in Path(spec.submodule_search_locations[0]).iterdir():
        if part.name != "work":
            (directory / part.name).symlink_to(part)
    return directory
