"""A model for Triton's autotuner: ``prune_configs_by={"perf_model": perf_model("B"), "top_k": 3}``.

Triton calls the model once for each configuration, with all arguments of the launch and of the configuration. It keeps
the ``top_k`` configurations with the smallest values, and benchmarks nothing if ``top_k`` is 1. The first call of a
launch scores all configurations of the bundle in one pass; later calls read the stored scores.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from surrogate.features import InputError
from surrogate.prediction.export_function import TRITON_ARGUMENTS
from surrogate.tuning.tuner import KernelSource, SearchSpace, build_space, described_family, open_kernel_source

MAX_PROBLEMS = 1000
"""Maximum number of problems with stored scores."""


def perf_model(source: KernelSource, gpu: str | None = None) -> Callable[..., float]:
    """Return a performance model for `triton.autotune`.

    Parameters
    ----------
    source
        A bundle of a described kernel, or its folder. Its sizes and parameters have the names of the kernel's
        arguments. Its settings ``dtype_0``, ``dtype_1`` … are the types of the kernel's tensors in order.
    gpu
        Any name of a GPU; None means the device that PyTorch finds.

    Returns
    -------
    callable
        A function of a launch's arguments that returns log(expected time / expected best time). Configurations that
        may fail have larger values.

    Raises
    ------
    InputError
        If the source is not a bundle of a described kernel. The function raises it if an argument is missing, if no GPU
        is found, or if the source has no measured times.
    """
    opened = open_kernel_source(source)
    description = described_family(opened).description
    scores: dict[tuple[object, ...], dict[str, float]] = {}
    device: list[str] = [] if gpu is None else [gpu]

    def expected(**arguments: Any) -> float:
        if not device:
            device.append(device_name())
        problem = problem_in(arguments, description.sizes, description.settings)
        key = tuple(problem.values())
        if key not in scores:
            if len(scores) >= MAX_PROBLEMS:
                scores.clear()
            scores[key] = scored(build_space(opened, device[0], problem, None))
        # Triton omits an unset limit of registers, and tables have 0 there. Tables may have short names for warps.
        values = {}
        for name in description.parameters:
            value = arguments.get(name, arguments.get(TRITON_ARGUMENTS.get(name, "")))
            if value is None and 0 not in description.parameters[name]:
                raise InputError(f"the launch has no argument {name}, a parameter of {description.name}")
            values[name] = 0 if value is None else value
        text = ",".join(f"{name}={value}" for name, value in values.items())
        if text not in scores[key]:  # a configuration outside the bundle is scored when it is first needed
            scores[key] |= scored(build_space(opened, device[0], problem, [values]))
        return scores[key][text]

    return expected


def scored(space: SearchSpace) -> dict[str, float]:
    """Return configuration → its score log(time / best time). Raises `InputError` if the space has no prior."""
    if space.prior is None:
        raise InputError("source is a description, which has no measured times; give perf_model a bundle")
    logs = -np.log1p(-np.minimum(space.prior.score, 1 - 1e-6))
    return dict(zip(space.texts, logs.tolist(), strict=True))


def problem_in(arguments: Mapping[str, Any], sizes: tuple[str, ...], settings: Mapping[str, Any]) -> dict[str, object]:
    """Return the sizes and settings among a launch's arguments. Raises `InputError` if a size is missing."""
    if missing := [name for name in sizes if name not in arguments]:
        raise InputError(f"the launch has no argument {missing[0]}; give sizes the names of the kernel's arguments")
    dtypes = [str(value.dtype) for value in arguments.values() if hasattr(value, "dtype")]
    problem: dict[str, object] = {name: int(arguments[name]) for name in sizes}
    for name in settings:
        numbered = re.fullmatch(r"dtype_(\d+)", name)
        if name in arguments:
            problem[name] = str(arguments[name])
        elif numbered and int(numbered[1]) < len(dtypes):
            problem[name] = dtypes[int(numbered[1])]
    return problem


def device_name() -> str:
    """Return the name of the current GPU. Raises `InputError` if no GPU is found."""
    try:
        import torch

        return torch.cuda.get_device_name()
    except Exception as error:  # no torch, no driver, no device: each has its own class
        raise InputError(f'no GPU was found ({error}); give one, as in perf_model(bundle, gpu="a100")') from None
