"""One sequential search over a kernel's configurations, and its hooks for Triton, Kernel Tuner and Optuna.

``Tuner`` asks and tells; ``perf_model`` prunes the configurations of a `triton.autotune`; ``kernel_tuner`` is a
strategy of Kernel Tuner, and ``Sampler`` a sampler of Optuna's. None of these packages is needed by another's hook.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
