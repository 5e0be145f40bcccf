"""The tests: a regular package, which Python prefers to the one that pykafka installs."""
