"""What if an optimisation were applied: change a trace's dependency graph, simulate it, compare (Daydream, ATC 2020).

Five primitives (`select`, `scale`, `insert`, `remove`, `schedule`) change a graph into another; an optimisation is a
function of a few of them, and `MODELS` are those that come with the package. A user's own is a function of a graph:
see `surrogate.trace.whatif.primitives` for an example.
"""

from surrogate.trace.whatif.evaluate import MODELS, Answer, WhatIf, evaluate, user_function, what_if
from surrogate.trace.whatif.output import write_timeline
from surrogate.trace.whatif.primitives import NewTask, Task, insert, remove, scale, schedule, select
from surrogate.trace.whatif.setting import Change, Network, Setting, setting_of

__all__ = [
    "MODELS", "Answer", "Change", "Network", "NewTask", "Setting", "Task", "WhatIf", "evaluate", "insert",
    "remove", "scale", "schedule", "select", "setting_of", "user_function", "what_if", "write_timeline",
]  # fmt: skip
