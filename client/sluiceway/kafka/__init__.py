"""Kafka clients: configuration, errors, topics, consumers and producers."""

__all__: list[str] = []
