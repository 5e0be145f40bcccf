"""Provisioning: makes topics in Kafka match the channels' specs."""
