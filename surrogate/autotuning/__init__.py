"""Measuring the best predictions alone, and the results kept for the next time."""
