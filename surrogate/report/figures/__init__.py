"""Figures: each file turns rows into one SVG text, or into None where there is nothing to draw."""

from surrogate.report.figures.buckets import bucket_figure
from surrogate.report.figures.gpus import gpu_figure
from surrogate.report.figures.predicted import predicted_figure
from surrogate.report.figures.slowdowns import slowdown_figure

__all__ = ["bucket_figure", "gpu_figure", "predicted_figure", "slowdown_figure"]
