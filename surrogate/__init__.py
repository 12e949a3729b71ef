"""SEER Surrogate."""
