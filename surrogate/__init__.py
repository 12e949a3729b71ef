"""SEER Surrogate: predict how long a GPU kernel takes without running it.

A prediction is the roofline time of the problem multiplied by a learned correction, and the algorithm with the smallest
prediction that the caller's limits allow is the pick.
"""

from pathlib import Path
from typing import Any

import lazy_loader

if not (Path(__file__).parent / "features").is_dir():  # a checkout or sdist without symbolic links
    __path__.append(str(Path(__file__).parents[1]))
_public_name, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    """Import and return a public name or a subpackage. ``import surrogate`` itself imports no pandas and no xgboost."""
    if name == "__version__":
        from importlib.metadata import version

        return version("seer-surrogate")
    return _public_name(name)
