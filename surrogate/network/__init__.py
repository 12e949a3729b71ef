"""Models of networks → operators → totals: how long a network takes on a GPU, and where the time goes."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
