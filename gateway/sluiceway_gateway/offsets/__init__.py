"""Committed positions of groups: commit, reset, acknowledgement, mirror."""
