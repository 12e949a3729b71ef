"""A model for Triton's autotuner: ``prune_configs_by={"perf_model": perf_model("B"), "top_k": 3}``.

Triton calls the model once for each configuration, with all arguments of the launch and of the configuration. It keeps
the ``top_k`` configurations with the smallest values, and benchmarks nothing if ``top_k`` is 1. The first call of a
launch scores all configurations of the bundle in one pass; later calls read the stored scores.

The model never stops a launch. If it cannot score one, a warning states the reason, and all values are equal, so that
Triton keeps the first ``top_k`` configurations.
"""

import re
import warnings
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache, partial
from math import inf, log2
from typing import Any

import numpy as np

from surrogate.features import Description, InputError, checked_int, setting
from surrogate.prediction.export_function import TRITON_ARGUMENTS
from surrogate.tuning.tuner import KernelSource, SearchSpace, build_space, open_kernel_source

MAX_PROBLEMS = 1000
"""Maximum number of problems with stored scores."""


def perf_model(source: KernelSource, gpu: str | None = None) -> Callable[..., float]:
    """Return a performance model for `triton.autotune`.

    Parameters
    ----------
    source
        A bundle of a described kernel, or its folder. Its sizes and parameters have the names of the kernel's
        arguments. Its settings ``dtype_0``, ``dtype_1`` … are the types of the kernel's tensors in order. The most
        similar measured type replaces an unmeasured one, with a warning.
    gpu
        Any name of a GPU; None means the device that PyTorch finds.

    Returns
    -------
    callable
        A function of a launch's arguments that returns log(expected time / expected best time). Configurations that
        may fail have larger values. It is infinite, with a warning, for a configuration that cannot be scored.

    Raises
    ------
    InputError
        If the source is a description, which has no measured times. An unusable bundle gives a warning.
    """
    warn = lru_cache(MAX_PROBLEMS)(partial(warnings.warn, stacklevel=2))
    try:
        bundle, family = opened = open_kernel_source(source)
    except InputError as error:
        warn(f"{error}; perf_model ranks no configurations, and Triton keeps the first top_k")
        return lambda **_: inf
    if bundle is None:
        raise InputError("source is a description, which has no measured times; give perf_model a bundle")
    description = family.description

    @lru_cache(MAX_PROBLEMS)
    def scores(device: str, /, **problem: object) -> dict[str, float]:
        return scored(build_space(opened, device, problem, None))

    def expected(**arguments: Any) -> float:
        try:
            problem = problem_in(arguments, description, warn)
            device = device_name() if gpu is None else gpu
            found = scores(device, **problem)
            values = values_in(arguments, description)
            text = description.text(values)
            if text not in found:  # a configuration outside the bundle is scored when it is first needed
                found |= scored(build_space(opened, device, problem, [values]))
            return found[text]
        except Exception as error:  # the user's program can launch without a model
            warn(f"{' '.join(str(error).split())}; perf_model ranks such configurations last, in their order")
            return inf

    return expected


def scored(space: SearchSpace) -> dict[str, float]:
    """Return configuration → its score log(time / best time)."""
    assert space.prior is not None, "a bundle's space has a prior"
    logs = -np.log1p(-np.minimum(space.prior.score, 1 - 1e-6))
    return dict(zip(space.texts, logs.tolist(), strict=True))


def values_in(arguments: Mapping[str, Any], description: Description) -> dict[str, Any]:
    """Return the parameters among a launch's arguments. Raises `InputError` if one is missing."""
    values = {}
    for name, declared in description.parameters.items():  # tables may have short names for warps, as in Triton's cache
        value = value_of(arguments.get(name, arguments.get(TRITON_ARGUMENTS.get(name, ""))))
        if value is None and 0 not in declared:
            raise InputError(
                f"the launch has no argument {name}, a parameter of {description.name}{_hint(name, arguments)}"
            )
        values[name] = 0 if value is None else value  # Triton omits an unset limit of registers; tables have 0 there
    return values


def problem_in(
    arguments: Mapping[str, Any], description: Description, warn: Callable[[str], None]
) -> dict[str, object]:
    """Return the sizes and settings among a launch's arguments.

    Raises `InputError` if a size is missing or not a whole number.
    """
    problem: dict[str, object] = {}
    for name in description.sizes:
        size = value_of(arguments.get(name))
        if name not in arguments and (hint := _hint(name, arguments)):
            raise InputError(f"the launch has no argument {name}, a size of {description.name}{hint}")
        problem[name] = int(size) if isinstance(size, bool) else checked_int("the launch", name, size, 0)
    types = {f"dtype_{at}": text for at, text in enumerate(filter(None, map(type_of, arguments.values())))}
    given = {**types, **arguments}
    for name, measured in description.settings.items():
        value = str(value_of(given[name])) if name in given else measured[0] if measured else ""
        near = nearest_type(value, measured) if "dtype" in name and value not in measured else value
        problem[name] = near
        if name not in given and len(measured) > 1:
            warn(f"the launch has no argument {name}, a setting of {description.name}; perf_model ranks by {near}")
        elif setting("dtype", near) != setting("dtype", value):
            warn(f"{name} {value} was not measured; perf_model ranks by {near}, the most similar type")
    return problem


def _hint(name: str, arguments: Mapping[str, Any]) -> str:
    """Return a hint if an argument's name differs only in capital letters; otherwise an empty text."""
    other = next((each for each in arguments if each.lower() == name.lower()), "")
    return f"; it has {other}, did you mean {name}?" if other else ""


def type_of(argument: object) -> str:
    """Return the element type of a tensor, of a type in its place, or of a signature such as ``*fp16``; or no text."""
    if isinstance(argument, str):
        return argument[1:] if argument.startswith("*") else ""
    return str(getattr(argument, "dtype", argument if type(argument).__name__ == "dtype" else ""))


def value_of(argument: Any) -> Any:
    """Return an argument, or the value of a `tl.constexpr`."""
    return getattr(argument, "value", argument)


def nearest_type(value: str, measured: Collection[str]) -> str:
    """Return the measured element type with the same name, or the same kind and the most similar width, if any."""
    words = {each: setting("dtype", each).replace("bool", "int1") for each in (value, *measured)}
    bits = {each: int(found[0]) for each, word in words.items() if (found := re.search(r"[1-9]\d*", word))}

    def difference(each: str) -> tuple[bool, bool, float]:
        is_other_kind = (words[each][0] in "iu") != (words[value][0] in "iu")
        return words[each] != words[value], is_other_kind, abs(log2(bits[each] / bits[value]))

    return min((each for each in measured if each in bits), key=difference, default=value) if value in bits else value


def device_name() -> str:
    """Return the name of the current GPU. Raises `InputError` if no GPU is found."""
    try:
        import torch

        return torch.cuda.get_device_name()
    except Exception as error:  # no torch, no driver, no device: each has its own class
        raise InputError(f'no GPU was found ({error}); give one, as in perf_model(bundle, gpu="a100")') from None
