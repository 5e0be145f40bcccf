"""How the client's objects travel between Spark's processes, each with a Python set up its own way.

Spark pickles objects with the names of their classes: a worker without the client fails with a
bare ModuleNotFoundError, and one with another version wherever the two differ. What is shipped
travels as bytes instead, with the code of the function that opens them.
"""

import pickle
import sys

from pyspark import cloudpickle

from sluiceway._version import __version__


class Shipped:
    """What Spark pickles and opens elsewhere: data sources, readers, writers.

    All attributes are shipped. Where the client cannot be imported, or has another major or
    minor version, opening raises ImportError with what to install where.
    """

    def __reduce__(self) -> tuple[object, ...]:
        """Travel as bytes, which `opened` opens."""
        # Pickled by its code, which is there when the client is not.
        cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
        return opened, (__version__, pickle.dumps((type(self), vars(self))))


def opened(version: str, parts: bytes) -> object:
    """Return the object of these pickled `parts`, a class and attributes, of the client `version`.

    Raises ImportError. Runs where the client may be missing: its code uses Python alone.
    """
    import pickle
    import platform
    import sys

    worker = f"Spark's Python worker {sys.executable} on {platform.node()}"
    advice = (
        f"install sluiceway {version} there, from a checkout by `pip install .`, or ship an "
        "environment that has it: spark-submit --archives environment.tar.gz#environment "
        "--conf spark.pyspark.python=./environment/bin/python"
    )
    try:
        from sluiceway._version import __version__ as found

        if found.split(".")[:2] == version.split(".")[:2]:
            kind, attributes = pickle.loads(parts)  # noqa: S301 - Spark's own processes made it
            made: object = kind.__new__(kind)
            vars(made).update(attributes)
            return made
    except ImportError as error:
        raise ImportError(f"{worker} cannot load sluiceway: {error}; {advice}") from error
    raise ImportError(f"{worker} has sluiceway {found}, the driver has {version}: {advice}")
