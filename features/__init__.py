"""The physics: problems, algorithms, devices, and the analytical terms of a kernel's time. Pure functions."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
