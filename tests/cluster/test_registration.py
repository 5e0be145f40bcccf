from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource

from sluiceway.errors import OptionError
from sluiceway.spark import register

# It ends with the process otherwise.
from sluiceway.spark.datasource import _APPLICATIONS, ChannelDataSource


class Session:
    """The parts of a Spark session that registering uses."""

    def __init__(self, version: str) -> None:
        self.version = version
        self.is_stopped = True
        self.conf: dict[str, str] = {}
        self.registered: list[Any] = []
        self.dataSource = SimpleNamespace(register=self.registered.append)


@pytest.mark.parametrize("version", ["3.5.7", "4.0.1"])
def test_registering_with_an_old_spark_is_an_error(version: str) -> None:
    session = Session(version)

    with pytest.raises(OptionError, match=rf"Spark is {version}; channels need 4\.1 or later"):
        register(session)  # type: ignore[arg-type]
    assert session.registered == []


@pytest.mark.parametrize("version", ["4.1.0", "4.1.4", "4.3.0", "4.2.0.dev1", "5.0.0-SNAPSHOT"])
def test_the_registered_class_creates_data_sources(version: str, gateway_url: str) -> None:
    session = Session(version)

    register(session, gateway=gateway_url)  # type: ignore[arg-type]
    # Its heartbeats would outlive the gateway, and warn on the error output of other tests.
    _APPLICATIONS.pop(id(session)).end()

    registered = cloudpickle.loads(cloudpickle.dumps(session.registered[0]))
    source = registered(options={"path": "flights"})
    assert issubclass(registered, DataSource)
    assert registered.name() == "channel"
    assert type(source) is ChannelDataSource
    assert (source.options, source.gateway_url) == ({"path": "flights"}, gateway_url)
