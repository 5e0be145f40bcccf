"""Registry: Confluent Schema Registry's read interface to the schemas of channels."""
