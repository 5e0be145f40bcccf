"""What features share: errors, settings, the database, Kafka, tokens and the audit trail."""
