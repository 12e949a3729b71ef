"""A model for Triton's autotuner: ``prune_configs_by={"perf_model": perf_model("B"), "top_k": 3}``.

Triton calls it once for each configuration with all arguments of the launch and of the configuration, and keeps the
``top_k`` least values; with 1 nothing is benchmarked. The first call of a launch scores all configurations that the
bundle knows, in one pass, and what it found is remembered.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from surrogate.features.description import Value
from surrogate.features.errors import InputError
from surrogate.prediction.export_function import TRITON_ARGUMENTS
from surrogate.tuning.tuner import Source, Space, described_of, opened, space_of

REMEMBERED = 1000
"""Problems whose scores are kept."""


def perf_model(source: Source, gpu: str | None = None) -> Callable[..., float]:
    """A function of a launch's arguments that gives a configuration's expected time relative to the best one's.

    ``source`` is a bundle of a described kernel whose sizes and parameters are called like the kernel's arguments;
    settings ``dtype_0``, ``dtype_1`` … are the types of its tensors in order. ``gpu`` None asks the device. A
    configuration that may fail comes late.
    """
    known = opened(source)
    description = described_of(known).description
    spaces: dict[tuple[object, ...], ConfigurationScores] = {}
    device: list[str] = [] if gpu is None else [gpu]

    def expected(**arguments: Any) -> float:
        if not device:
            device.append(device_name())
        problem = problem_in(arguments, description.sizes, description.settings)
        key = tuple(problem.values())
        if key not in spaces:
            if len(spaces) >= REMEMBERED:
                spaces.clear()
            spaces[key] = ConfigurationScores(
                lambda configurations: space_of(known, device[0], problem, configurations)
            )
        # Triton leaves a limit of registers that is not set out, tables hold 0 for it. They may call warps short.
        given = {}
        for name in description.parameters:
            value = arguments.get(name, arguments.get(TRITON_ARGUMENTS.get(name, "")))
            if value is None and 0 not in description.parameters[name]:
                raise InputError(f"the launch has no argument {name}, a parameter of {description.name}")
            given[name] = 0 if value is None else value
        return spaces[key].of(given)

    return expected


class ConfigurationScores:
    """log(time / the best one's) of configurations of one problem: of all that ``made`` knows at once, others alone."""

    def __init__(self, made: Callable[[list[Mapping[str, Value]] | None], Space]) -> None:
        self._made = made
        self._known = self._scored(None)

    def of(self, configuration: Mapping[str, Any]) -> float:
        """The score of a configuration."""
        text = ",".join(f"{name}={value}" for name, value in configuration.items())
        if text not in self._known:
            self._known |= self._scored([configuration])
        return self._known[text]

    def _scored(self, configurations: list[Mapping[str, Value]] | None) -> dict[str, float]:
        space = self._made(configurations)
        if space.prior is None:
            raise InputError("a description alone knows no times; give perf_model a bundle")
        values = -np.log1p(-np.minimum(space.prior.score, 1 - 1e-6))
        return dict(zip(space.texts, values.tolist(), strict=True))


def problem_in(arguments: Mapping[str, Any], sizes: tuple[str, ...], settings: Mapping[str, Any]) -> dict[str, object]:
    """Sizes and settings among a launch's arguments. Raises `InputError` for a size that is not there."""
    if missing := [name for name in sizes if name not in arguments]:
        raise InputError(f"the launch has no argument {missing[0]}; call sizes as the kernel's arguments are called")
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
    """The name of the GPU that launches would run on. Raises `InputError` where none is found."""
    try:
        import torch

        return torch.cuda.get_device_name()
    except Exception as error:  # no torch, no driver, no device: each has its own class
        raise InputError(f'no GPU was found ({error}); name one, as in perf_model(bundle, gpu="a100")') from None
