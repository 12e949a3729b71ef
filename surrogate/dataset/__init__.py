"""Datasets: columns, reading and writing, checks, splits, and rows with their features."""
