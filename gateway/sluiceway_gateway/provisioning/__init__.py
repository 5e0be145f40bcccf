"""Provisioning: topics brought to what the channels' specs ask for."""
