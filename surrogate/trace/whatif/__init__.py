"""What if an optimisation were applied: change a trace's dependency graph, simulate it, compare (Daydream, ATC 2020).

Five primitives (`select`, `scale`, `insert`, `remove`, `schedule`) change a graph into another; an optimisation is a
function of a few of them. `MODELS` are those that the modules of this package declare (`setting.rule`); a user's own is
a function of a graph: see `surrogate.trace.whatif.primitives` for an example.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
