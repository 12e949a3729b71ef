"""A strategy of Kernel Tuner: ``tune_kernel(…, strategy=surrogate.tuning.kernel_tuner, strategy_options={…})``.

Options beside ``max_fevals`` and ``time_limit``: ``bundle``, a folder that knows the kernel (without it the search
begins from nothing), ``gpu`` (by default the device's name), ``problem`` (sizes, where the bundle knows several),
``seed`` and ``log``. Kernel Tuner's own rules for a strategy hold; it is imported when `tune` is called.
"""

from math import isfinite
from typing import Any

from surrogate.features.description import Description
from surrogate.features.errors import InputError, nearest
from surrogate.tuning.tuner import Tuner


def tune(searchspace: Any, runner: Any, tuning_options: Any) -> list[dict[str, Any]]:
    """Measure configurations of ``searchspace`` by ``runner`` until the budget or the space is spent: all results."""
    from kernel_tuner.strategies.common import CostFunc
    from kernel_tuner.util import StopCriterionReached

    options = tuning_options.strategy_options
    if unknown := [name for name in options if name not in OPTIONS]:
        hint = nearest(unknown[0], OPTIONS)
        raise InputError(f"strategy_options has no {unknown[0]}; known: {', '.join(OPTIONS)}{hint}")
    names = list(searchspace.tune_params)
    space = [dict(zip(names, values, strict=True)) for values in searchspace.list]
    cost = CostFunc(searchspace, tuning_options, runner, snap=False)
    source = options.get("bundle") or cold_description(getattr(runner.kernel_options, "kernel_name", "kernel"), space)
    named = options.get("gpu") or runner.get_environment(tuning_options).get("device_name", "")
    tuner = Tuner(
        source,
        str(named),
        options.get("problem"),
        seed=options.get("seed", 0),
        log=options.get("log"),
        configurations=space,
    )
    # What a bundle's kernel calls a configuration may lack parameters that follow from the others, such as block sizes.
    whole = {tuner.place(each): each for each in space}
    if len(whole) < len(space):
        further = ", ".join(name for name in names if name not in tuner.configurations[0])
        raise InputError(f"the bundle's kernel has no {further}, which the space varies; train one on a table that has")
    try:
        while asked := tuner.ask():
            measured = whole[tuner.place(asked[0])]
            value = cost.eval([measured[name] for name in names], check_restrictions=False)
            tuner.tell(asked[0], as_time_us(float(value), tuning_options.objective_higher_is_better))
    except StopCriterionReached as reached:
        if tuning_options.verbose:
            print(reached)
    return cost.results


def as_time_us(cost: float, higher_is_better: object) -> float | None:
    """A cost as a time in µs: the objective's value in ms, of one to be maximised its inverse; None where it failed."""
    reversed_ = higher_is_better[0] if isinstance(higher_is_better, list) else higher_is_better
    value = -1.0 / cost if reversed_ and cost else cost
    return 1e3 * value if isfinite(value) and 0 < value < FAILED else None


OPTIONS = (
    "bundle",
    "gpu",
    "problem",
    "seed",
    "log",
    "max_fevals",
    "time_limit",
    "x0",
    "searchspace_construction_options",
)
"""The module's, and those that Kernel Tuner gives to every strategy."""
FAILED = 1e30
"""Kernel Tuner's cost of a configuration that failed is the greatest number."""


def cold_description(name: str, space: list[dict[str, Any]]) -> Description:
    """A kernel without sizes whose parameters have the values of ``space``."""
    values = {parameter: tuple(dict.fromkeys(each[parameter] for each in space)) for parameter in space[0]}
    return Description(name if name.isidentifier() else "kernel", (), values)
