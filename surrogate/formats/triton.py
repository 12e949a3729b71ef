"""Triton's autotuning caches: NAME.autotune.json, the time of every configuration of a kernel for one key.

How to get them: set TRITON_CACHE_AUTOTUNING=1, or decorate with ``@triton.autotune(..., cache_results=True)``, and run
the kernel on all problems of interest. Give the files, or the cache folder (~/.triton/cache, or TRITON_CACHE_DIR).
Subfolders are searched, too. The files do not name the GPU: keep one folder per GPU, and give --gpu.

The key of a file holds the values of the arguments in ``key=``, in their order, then the element types of all tensors.
``--keys m,n,k`` names the values; the default names are key_0, key_1 …. Integers become sizes, other values become
settings. The element types become the settings dtype_0, dtype_1 … unchanged (torch.float16). Parameters are the keyword
arguments of a configuration, num_warps, num_stages, num_ctas, maxnreg and its other fields. None among the values of a
parameter is read as 0. If they also include 0, true, false or a text, all values are read as texts. The time is the
median; the minimum and the maximum are the 20 % and 80 % quantiles.
"""

import re
from itertools import takewhile, zip_longest
from pathlib import Path
from typing import Any, NamedTuple, Unpack

from surrogate.features.errors import InputError, parsed_json
from surrogate.formats import Format, Option
from surrogate.formats.foreign_file import Paths, ReadLimits, files_of, read_bytes, readable
from surrogate.formats.imported import Imported
from surrogate.formats.tuned import TunedKernel, TunedRow, one_kernel, outcome, tuned

ENDING = ".autotune.json"
MAX_KEYS = 64
_FAILED = "no time: the configuration did not compile, or exceeds a limit of the GPU"
_DTYPE = re.compile(r"(torch\.)?(u?int|b?float|bool|complex|fp)\w*")


class _Tuning(NamedTuple):
    """The content of a file. ``key`` ends with the element types; ``value_count`` values precede them."""

    path: Path
    key: list[str]
    value_count: int
    timings: list[tuple[dict[str, Any], list[Any]]]


def read(paths: Paths, *, gpu: str, keys: str = "", name: str | None = None, **limits: Unpack[ReadLimits]) -> Imported:
    """Read the configurations of one kernel. ``keys`` names the values of the key, ``name`` chooses among kernels.

    Raises `InputError` with the file.
    """
    kernels = {f: f.name.removesuffix(".gz").removesuffix(ENDING) for f, _ in files_of(paths, (ENDING,), "triton")}
    kernel = one_kernel(kernels.values(), name, paths[0])
    tunings = [_tuning(file, limits) for file, its_kernel in kernels.items() if its_kernel == kernel]
    # 1. Names of the values in the keys.
    counts = sorted({tuning.value_count for tuning in tunings})
    if not keys and len(counts) > 1:
        raise InputError(f"{paths[0]}: keys of {kernel} have {counts[0]} to {counts[-1]} values; name them with --keys")
    names = re.split(r"\s*,\s*", keys.strip()) if keys else [f"key_{place}" for place in range(counts[0])]
    if short := [tuning for tuning in tunings if len(tuning.key) < len(names)]:
        raise InputError(f"{short[0].path}: its key has {len(short[0].key)} values, --keys names {len(names)}")
    if len(names) < counts[0]:
        values = f"{counts[0]} values before the element types"
        raise InputError(f"{tunings[0].path}: its key has {values}, --keys names {len(names)}; name them all, in order")
    names += [f"dtype_{place}" for place in range(max(len(tuning.key) for tuning in tunings) - len(names))]
    named_keys = [dict(zip_longest(names, tuning.key, fillvalue="")) for tuning in tunings]
    sizes = [each for each in names if all(re.fullmatch(r"[0-9]{1,15}", key[each]) for key in named_keys)]
    # 2. A row for each configuration.
    outcomes: list[TunedRow] = []
    for tuning, key in zip(tunings, named_keys, strict=True):
        problem = {each: int(value) if each in sizes else value or "none" for each, value in key.items()}
        problem |= {"gpu": gpu, "origin": f"{tuning.path.parent.name}/{tuning.path.name}"}
        for configuration, times in tuning.timings:
            outcomes.append(outcome(problem, configuration, [*times, None][0], spread_ms=times[1:], reason=_FAILED))
    return tuned(TunedKernel(kernel, sizes, [each for each in names if each not in sizes]), outcomes, paths[0])


_KEYS = Option("For triton: names of the values in the kernel's key, as in m,n,k.", "NAMES")
FORMAT = Format("triton", "Triton's autotuning caches", read, extra_options={"keys": _KEYS}, finds_files=True)


def _tuning(path: Path, limits: ReadLimits) -> _Tuning:
    """Read one file. Raises `InputError`."""
    timings = []
    with readable(path, f"give NAME{ENDING} of Triton's cache"):
        content = parsed_json(read_bytes(path, **limits))
        if not isinstance(content["key"], list) or len(content["key"]) > MAX_KEYS:
            raise ValueError(f"its key is no list of at most {MAX_KEYS} values")
        key = [*map(str, content["key"])]
        for configuration, timing in content["configs_timings"]:
            own = {name: value for name, value in configuration.items() if name not in ("kwargs", "pre_hook")}
            timings.append(({**configuration["kwargs"], **own}, timing if isinstance(timing, list) else [timing]))
    return _Tuning(path, key, len(key) - len([*takewhile(_DTYPE.fullmatch, reversed(key))]), timings)
