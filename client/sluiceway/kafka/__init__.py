"""The client's side of Kafka: properties, failures, topics and offsets."""

__all__: list[str] = []
