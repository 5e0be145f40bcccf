"""A broker of one's own that can be stopped and brought back with its data."""

from pathlib import Path

from shared_kafka import SharedKafka
from sluiceway_gateway.embedded import KafkaServer


class Outage:
    """Kafka that is there until `begin` and again after `end`, at the same address."""

    def __init__(self, kafka: SharedKafka, data_dir: Path) -> None:
        self._kafka = kafka
        self._data_dir = data_dir
        self._server = self._start()
        self.bootstrap_servers = self._server.bootstrap_servers

    @property
    def server(self) -> KafkaServer:
        """The broker that runs, or ran last."""
        return self._server

    def begin(self) -> None:
        """Stop the broker; may be repeated."""
        self._server.stop()

    def end(self) -> None:
        """Have the broker back, if it is not there."""
        if not self._server.running():
            self._server = self._start(self._server.port)

    def _start(self, port: int | None = None) -> KafkaServer:
        return self._kafka.another(self._data_dir, port=port)
