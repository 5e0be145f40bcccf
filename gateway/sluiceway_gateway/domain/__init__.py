"""Pure values and rules: nothing here knows SQL, HTTP or Kafka, or reads a clock."""
