"""The parts below all features: errors, settings, database, Kafka, tokens, audit trail."""
