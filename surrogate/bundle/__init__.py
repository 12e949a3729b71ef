"""Datasets to a fitted bundle on disk, its card, and its calibration to another GPU."""
