"""A strategy of Kernel Tuner: ``tune_kernel(…, strategy=surrogate.tuning.kernel_tuner, strategy_options={…})``.

Its options, in addition to ``max_fevals`` and ``time_limit``, are:

- ``bundle``: the folder of a bundle for the kernel. Without it, the search has no prior.
- ``gpu``: the name of a GPU, by default the device's name.
- ``problem``: the sizes, needed if the bundle measured several problems.
- ``seed`` and ``log``: as in `surrogate.tuning.Tuner`.
- ``x0``: a configuration that is measured first, or a list of several. It is a mapping, or values in order.

Kernel Tuner's rules for strategies apply. Kernel Tuner is imported when `tune` is called.
"""

import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import Any

from surrogate.features import Configuration, Description, InputError, Value, check_choice
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
        If an option is unknown, if there are several objectives, if ``x0`` is not in the search space, or if the
        bundle's kernel lacks a parameter of the search space.
    """
    from kernel_tuner.strategies.common import CostFunc
    from kernel_tuner.util import StopCriterionReached

    options = tuning_options.strategy_options
    for name in options:
        check_choice("strategy_options:", name, OPTIONS)
    objectives = tuning_options.objective
    if not isinstance(objectives, str) and len(objectives) > 1:
        raise InputError(f"there are {len(objectives)} objectives, {', '.join(objectives)}; this strategy needs one")
    names = [*searchspace.tune_params]
    starts = start_indices(options.get("x0"), names, searchspace.list)
    if not options.get("bundle"):  # a description cannot have some names
        names = [name if is_allowed(name, [1]) else as_name(f"p{at}_{name}") for at, name in enumerate(names)]
    space = described(names, searchspace.list)
    cost = CostFunc(searchspace, tuning_options, runner, snap=False)
    kernel_name = as_name(getattr(runner.kernel_options, "kernel_name", "kernel"))
    source = options.get("bundle") or Description(kernel_name, (), {name: (space[0][name],) for name in names})
    gpu = options.get("gpu") or runner.get_environment(tuning_options).get("device_name", "")
    given = {name: options[name] for name in ("problem", "seed", "log") if name in options}
    tuner = Tuner(source, str(gpu), configurations=space, **given)
    # A configuration of the bundle's kernel may lack parameters that follow from the others, such as block sizes.
    full = {tuner.position_of(each): values for each, values in zip(space, searchspace.list, strict=True)}
    if len(full) < len(space):
        missing = ", ".join(sorted({*names} - {*tuner.configurations[0]}))
        raise InputError(f"the bundle's kernel has no {missing}, which the search space varies; train a bundle with it")
    proposed = [space[index] for index in starts]
    try:
        while proposed := proposed or tuner.ask():
            values = full[tuner.position_of(configuration := proposed.pop(0))]
            time_us = as_time_us(float(cost.eval([*values], check_restrictions=False)))
            with warnings.catch_warnings():
                if "time" not in objectives:  # another objective has another unit than µs
                    warnings.simplefilter("ignore")
                tuner.tell(configuration, time_us)
    except StopCriterionReached as reached:
        if tuning_options.verbose:
            print(reached)
    return cost.results


def as_time_us(cost: float) -> float | None:
    """Return a cost in ms as a time in µs, or None if the configuration failed.

    The cost of an objective that is maximised is negative; the time is its negative inverse.
    """
    value = -1.0 / cost if cost < 0 else cost
    return 1e3 * value if isfinite(value) and 0 < value < MAX_COST else None


def start_indices(x0: Any, names: Sequence[str], listed: Sequence[tuple[Any, ...]]) -> list[int]:
    """Return the indices of the configurations of ``x0``. Raises `InputError` if one is not in the list."""
    given = as_list([] if x0 is None else x0)
    is_list = all(isinstance(each, Iterable) and not isinstance(each, str) for each in given)
    starts: list[Any] = given if is_list else [given]
    indices = []
    for start in starts:
        is_named = isinstance(start, Mapping) and {*start} == {*names}
        values = [start[name] for name in names] if is_named else as_list(start)
        found = [index for index, each in enumerate(listed) if as_list(each) == values]
        if not found:
            text = f"x0 {start if isinstance(start, Mapping) else values} is not in the search space"
            raise InputError(f"{text}; give a value for each of tune_params, in order or by name")
        indices += found
    return list(dict.fromkeys(indices))


def as_list(value: Any) -> list[Any]:
    """Return the elements of a value as Python's own types; a mapping, a text or a number is the only element."""
    is_single = isinstance(value, Mapping | str) or not isinstance(value, Iterable)
    return [value] if is_single else [getattr(each, "tolist", lambda each=each: each)() for each in value]


OPTIONS = ("bundle", "gpu", "problem", "seed", "log")
OPTIONS += ("max_fevals", "time_limit", "x0", "searchspace_construction_options")
"""The options of this strategy, and the options that Kernel Tuner passes to every strategy."""
MAX_COST = 1e30
"""Upper limit of the cost of a configuration that ran; Kernel Tuner gives a failed one the largest number."""


def as_name(text: str) -> str:
    """Return a name of a description for a text that begins with a letter."""
    return re.sub(r"\W", "_", text)[:64]


def is_allowed(name: str, values: Sequence[Any]) -> bool:
    """Return whether a description may have a parameter with the name and the values."""
    try:
        Description("kernel", (), {name: tuple(dict.fromkeys(values))})
    except InputError:
        return False
    return True


def described(names: Sequence[str], listed: Sequence[tuple[Any, ...]]) -> list[Configuration]:
    """Return configurations whose values a description can have; texts replace other values of a parameter."""
    columns = []
    for column in zip(*listed, strict=True):
        column_values = [value.item() if hasattr(value, "item") else value for value in column]
        if not is_allowed("parameter", column_values):
            numbers: dict[str, Value] = {}
            column_values = [numbers.setdefault(repr(value), f"value {len(numbers)}") for value in column_values]
        columns.append(column_values)
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]
