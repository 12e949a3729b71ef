"""A strategy of Kernel Tuner: ``tune_kernel(…, strategy=surrogate.tuning.kernel_tuner, strategy_options={…})``.

Its options, in addition to ``max_fevals`` and ``time_limit``, are:

- ``bundle``: the folder of a bundle for the kernel. Without it, the search has no prior.
- ``gpu``: the name of a GPU, by default the device's name.
- ``problem``: the sizes, needed if the bundle measured several problems.
- ``seed`` and ``log``: as in `surrogate.tuning.Tuner`.

Kernel Tuner's rules for strategies apply. Kernel Tuner is imported when `tune` is called.
"""

from math import isfinite
from typing import Any

from surrogate.features import Description, InputError, nearest
from surrogate.tuning.tuner import Tuner


def tune(searchspace: Any, runner: Any, tuning_options: Any) -> list[dict[str, Any]]:
    """Measure configurations until the budget is spent or all are measured, and return the results.

    Parameters
    ----------
    searchspace, runner, tuning_options
        Kernel Tuner's search space, runner and options of a strategy.

    Returns
    -------
    list of dict
        Kernel Tuner's results, one for each measured configuration.

    Raises
    ------
    InputError
        If an option is unknown, or if the bundle's kernel lacks a parameter of the search space.
    """
    from kernel_tuner.strategies.common import CostFunc
    from kernel_tuner.util import StopCriterionReached

    options = tuning_options.strategy_options
    if unknown := [name for name in options if name not in OPTIONS]:
        hint = nearest(unknown[0], OPTIONS)
        raise InputError(f"strategy_options has no {unknown[0]}; known: {', '.join(OPTIONS)}{hint}")
    names = list(searchspace.tune_params)
    space = [dict(zip(names, values, strict=True)) for values in searchspace.list]
    cost = CostFunc(searchspace, tuning_options, runner, snap=False)
    source = options.get("bundle") or space_description(getattr(runner.kernel_options, "kernel_name", "kernel"), space)
    gpu = options.get("gpu") or runner.get_environment(tuning_options).get("device_name", "")
    given = {name: options[name] for name in ("problem", "seed", "log") if name in options}
    tuner = Tuner(source, str(gpu), configurations=space, **given)
    # A configuration of the bundle's kernel may lack parameters that follow from the others, such as block sizes.
    full = {tuner.position_of(each): each for each in space}
    if len(full) < len(space):
        missing = ", ".join(name for name in names if name not in tuner.configurations[0])
        raise InputError(f"the bundle's kernel has no {missing}, which the search space varies; train a bundle with it")
    try:
        while proposed := tuner.ask():
            configuration = full[tuner.position_of(proposed[0])]
            value = cost.eval([configuration[name] for name in names], check_restrictions=False)
            tuner.tell(proposed[0], as_time_us(float(value), tuning_options.objective_higher_is_better))
    except StopCriterionReached as reached:
        if tuning_options.verbose:
            print(reached)
    return cost.results


def as_time_us(cost: float, higher_is_better: object) -> float | None:
    """Return a cost in ms as a time in µs, or None if the configuration failed.

    The cost of an objective that is maximised is negative; the time is its negative inverse.
    """
    is_maximised = higher_is_better[0] if isinstance(higher_is_better, list) else higher_is_better
    value = -1.0 / cost if is_maximised and cost else cost
    return 1e3 * value if isfinite(value) and 0 < value < MAX_COST else None


OPTIONS = ("bundle", "gpu", "problem", "seed", "log")
OPTIONS += ("max_fevals", "time_limit", "x0", "searchspace_construction_options")
"""The options of this strategy, and the options that Kernel Tuner passes to every strategy."""
MAX_COST = 1e30
"""Upper limit of the cost of a configuration that ran; Kernel Tuner gives a failed one the largest number."""


def space_description(name: str, space: list[dict[str, Any]]) -> Description:
    """Return the description of a kernel without sizes. Its parameters have the values in ``space``."""
    values = {parameter: tuple(dict.fromkeys(each[parameter] for each in space)) for parameter in space[0]}
    return Description(name if name.isidentifier() else "kernel", (), values)
