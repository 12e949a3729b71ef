"""What if an optimisation were applied: change a trace's dependency graph, simulate it, compare (Daydream, ATC 2020).

Five primitives (`select`, `scale`, `insert`, `remove`, `schedule`) change a graph into another; an optimisation is a
function of a few of them. `MODELS` are those that the modules of this package declare (`setting.rule`); a user's own is
a function of a graph: see `surrogate.trace.whatif.primitives` for an example.
"""

import warnings
from collections.abc import Sequence
from importlib import import_module
from math import inf
from pkgutil import iter_modules

from surrogate.features.errors import InputError, imported_callable, in_one_line, require_known
from surrogate.features.gpu import gpu
from surrogate.trace.graph import graph_of
from surrogate.trace.graph.tasks import Graph
from surrogate.trace.profiling import Source, profile, steady
from surrogate.trace.whatif.evaluate import Answer, WhatIf, evaluate, write_timeline
from surrogate.trace.whatif.primitives import NewTask, Task, insert, remove, scale, schedule, select
from surrogate.trace.whatif.setting import UNJUDGED, Change, Network, Rule, Setting, setting_of

__all__ = [
    "MODELS",
    "Answer",
    "Change",
    "Network",
    "NewTask",
    "Setting",
    "Task",
    "WhatIf",
    "described",
    "evaluate",
    "insert",
    "remove",
    "scale",
    "schedule",
    "select",
    "setting_of",
    "user_function",
    "what_if",
    "what_ifs",
    "write_timeline",
]


def _declared() -> dict[str, Rule]:
    """Every `Rule` in a module of this package, by its name."""
    modules = [import_module(module.name) for module in iter_modules(__path__, f"{__name__}.")]
    rules = [each for module in modules for each in vars(module).values() if isinstance(each, Rule)]
    return {declared.name: declared for declared in sorted(rules, key=lambda declared: declared.name)}


MODELS = _declared()
"""Name → what-if, of all that come with the package."""


def what_if(text: str) -> WhatIf:
    """``amp``, ``faster-kernels=4`` or ``gpu=a100``. `InputError` for an unknown name or a value that is none."""
    if "," in text:
        raise InputError(f"what-if {text!r} names several; write them apart: {' '.join(text.split(','))}")
    name, equals, number = text.partition("=")
    if text.replace(".", "", 1).isdigit():
        raise InputError(f"what-if {text!r} is a number; write it behind a name, as in batch={text}")
    require_known("what-if", name, MODELS)
    declared = MODELS[name]
    evidence = declared.evidence or UNJUDGED
    if not equals:
        return WhatIf(name, declared, evidence=evidence)
    if declared.of_gpu:
        return WhatIf(name, declared, evidence=evidence, target=gpu(number))
    if declared.value is None:
        raise InputError(f"what-if {name!r} takes no number; write it without {text[len(name) :]!r}")
    try:
        value = float(number)
    except ValueError:
        raise InputError(f"{number!r} in {text!r} is no number; write such as {name}=2") from None
    least = declared.value.least
    if not (0 < value < inf and value >= least):
        raise InputError(f"{text}: give a number {f'of {least:g} or more' if least else 'above 0'}")
    return WhatIf(name, declared, value, evidence)


def what_ifs(
    trace: Source,
    asked: Sequence[str] | str,
    *,
    target: str | None = None,
    own_gpu: str | None = None,
    network: Network | None = None,
) -> list[Answer]:
    """The answers to what-ifs by their names, such as ``amp`` or ``batch=64``, of a trace, its file or a shipped one.

    ``target`` is the GPU asked about, ``own_gpu`` that of the trace, where it does not tell. One that is unknown or
    does not apply is left out, and a warning says why. Raises `InputError` where none is answered.
    """
    named: list[WhatIf] = []
    refusals: dict[str, str] = {}
    for text in [asked] if isinstance(asked, str) else asked:
        try:
            named.append(what_if(text))
        except InputError as error:
            refusals[text] = str(error)
    profiled = steady(profile(trace, own_gpu))
    setting = setting_of(profiled, target=target, network=network)
    answers = evaluate(graph_of(profiled.trace, profiled.layers), named, setting, refusals=refusals)
    if refusals and not answers:
        raise InputError("; ".join(dict.fromkeys(refusals.values())))
    for name, reason in refusals.items():
        warnings.warn(f"{name} is left out: {reason.removeprefix(f'{name}: ')}", stacklevel=2)
    return answers


def described() -> dict[str, str]:
    """What help says of every what-if: its name, with N where it takes a number, and what it does."""
    return {
        name + ("=N" if rule.value else "=GPU" if rule.of_gpu else ""): rule.help
        + (f" N: {rule.value}." if rule.value else "")
        for name, rule in MODELS.items()
    }


def user_function(text: str) -> WhatIf:
    """``module:callable`` of the user's own, which takes a graph and returns one.

    The module is imported, which runs it: give only one of your own. Raises `InputError` where it cannot be had
    or fails.
    """
    function = imported_callable(text, "it must take a graph and return one")

    def model(graph: Graph, setting: Setting, value: float | None) -> Change:
        with in_one_line(text):
            changed = function(graph)
        if not isinstance(changed, Graph):
            raise InputError(f"{text} returned {type(changed).__name__}; it must return a graph")
        return Change(changed)

    return WhatIf(text, model)
