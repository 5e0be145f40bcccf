"""Sluiceway's gateway: provisions channels and keeps what must be agreed on."""
