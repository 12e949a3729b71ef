"""Tables to fitted models: every model is a `TimeModel`, a scikit-learn regressor of kernel times.

Names are imported when they are first asked for, so that a stored model answers without pandas and scikit-learn.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
