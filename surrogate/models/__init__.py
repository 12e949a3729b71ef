"""Fit models on tables: every model is a `TimeModel`, a scikit-learn regressor of kernel times.

Names are imported on first use, so that a stored model answers without pandas and scikit-learn.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
