"""Exactly-once delivery: batches, the offsets that they commit, and what readers may see."""
