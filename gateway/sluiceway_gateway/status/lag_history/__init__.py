"""Lag history: lag and rates of a channel over time, at decreasing resolution."""
