"""What can go wrong before the embedded broker serves.

EmbeddedError
├── JavaMissing          no Java, or one that is too old
├── JarsUnavailable      Kafka's jars could not be had, or are not what was pinned
└── BrokerStartFailed    the broker ended, or did not answer in time
"""


class EmbeddedError(Exception):
    """The embedded broker cannot run; the message says why and what to do."""


class JavaMissing(EmbeddedError):
    """No usable Java: the message names what to install."""


class JarsUnavailable(EmbeddedError):
    """Kafka's jars could not be fetched, or do not have the pinned SHA-256 sums."""


class BrokerStartFailed(EmbeddedError):
    """The broker's process ended or did not answer in time; the message has its last log lines."""
