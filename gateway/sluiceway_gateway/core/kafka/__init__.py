"""Kafka's admin interface. No other package of the gateway imports confluent-kafka."""
