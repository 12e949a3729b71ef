"""What-ifs: change a trace's dependency graph, simulate it, and compare the times (Daydream, ATC 2020).

An optimisation is a function of five primitives: `select`, `scale`, `insert`, `remove` and `schedule`.
`WHAT_IF_RULES` are the what-ifs that the modules of this package declare (`setting.rule`). A user's own what-if is a
function of a graph; see `surrogate.trace.whatif.primitives` for an example.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
