"""Rows to checked tables: columns, reading and writing, checks, splits, features."""
