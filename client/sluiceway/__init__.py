"""Typed data channels on Kafka: the client."""
