"""The Kafka cluster: brokers, topics, watermarks."""
