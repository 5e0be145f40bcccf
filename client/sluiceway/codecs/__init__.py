"""Codecs: conversion of record batches to the values of Kafka messages, and back."""

from sluiceway.codecs.arrow import Envelope
from sluiceway.codecs.base import Codec, Corrupt, Decoded, Encoded
from sluiceway.codecs.decoder import Decoder, codec

__all__ = ["Codec", "Corrupt", "Decoded", "Decoder", "Encoded", "Envelope", "codec"]
