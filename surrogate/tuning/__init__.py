"""One sequential search over a kernel's configurations, and its hooks for Triton, Kernel Tuner and Optuna.

``Tuner`` proposes configurations and receives their times. ``perf_model`` prunes the configurations of a
`triton.autotune`. ``kernel_tuner`` is a strategy for Kernel Tuner, and ``Sampler`` is a sampler for Optuna. Each hook
needs only its own package.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
