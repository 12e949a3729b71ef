"""Triton's autotuning caches: NAME.autotune.json, the time of every configuration of a kernel for one key.

How to get them: set TRITON_CACHE_AUTOTUNING=1, or decorate with ``@triton.autotune(..., cache_results=True)``, and run
the kernel on all problems of interest. Give the cache folder (~/.triton/cache, or TRITON_CACHE_DIR), which is searched with
all that is below it, or the files. They do not tell the GPU: keep one folder for each, and give --gpu.

A file's key is the values of the arguments that ``key=`` names, in that order, then the element types of all tensors.
``--keys m,n,k`` names the values; without it they are key_0, key_1 …. Whole numbers become sizes, others settings; the
element types become the settings dtype_0, dtype_1 …, without ``torch.``. Parameters are the keyword arguments of a
configuration with num_warps, num_stages, num_ctas, maxnreg and what else it has. A time is the median; least and
greatest are the 20 % and 80 % quantiles.
"""

import re
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple, Unpack

from surrogate.features.errors import InputError
from surrogate.formats import Format, Option
from surrogate.formats.foreign_file import Limits, Paths, read_bytes
from surrogate.formats.imported import Imported
from surrogate.formats.tuned import Outcome, one_kernel, outcome, parsed_json, tuned

ENDING = ".autotune.json"
_REMEDY = f"give NAME{ENDING} of Triton's cache"
_FAILED = "no time: it did not compile, or needs more than the GPU has"
_DTYPE = re.compile(r"(u?int|b?float|bool|complex|fp)\w*")


class _Tuning(NamedTuple):
    """The content of a file: the key as texts, and how many of them stand before the element types at its end."""

    path: Path
    key: list[str]
    value_count: int
    timings: list[tuple[dict[str, Any], list[Any]]]


def read(
    paths: Paths, *, gpu: str, keys: str | None = None, name: str | None = None, **limits: Unpack[Limits]
) -> Imported:
    """The configurations of one kernel; ``keys`` names the values of the key, ``name`` chooses among kernels.

    Raises `InputError` naming the file.
    """
    kernels = {file: file.name.removesuffix(".gz").removesuffix(ENDING) for file in _files(paths)}
    kernel = one_kernel(kernels.values(), name, paths[0])
    tunings = [_tuning(file, limits) for file, its_kernel in kernels.items() if its_kernel == kernel]
    # 1. Names for what the keys hold.
    counts = sorted({tuning.value_count for tuning in tunings})
    if keys is None and len(counts) > 1:
        raise InputError(f"{paths[0]}: keys of {kernel} have {counts[0]} to {counts[-1]} values; name them with --keys")
    names = [f"key_{place}" for place in range(counts[0])] if keys is None else re.split(r"\s*,\s*", keys.strip())
    if short := [tuning for tuning in tunings if len(tuning.key) < len(names)]:
        raise InputError(f"{short[0].path}: its key has {len(short[0].key)} values, --keys names {len(names)}")
    names += [f"dtype_{place}" for place in range(max(len(tuning.key) for tuning in tunings) - len(names))]
    cells = [[*tuning.key, *[""] * (len(names) - len(tuning.key))] for tuning in tunings]
    is_size = [
        all(re.fullmatch(r"\d{1,15}", value, re.ASCII) for value in column) for column in zip(*cells, strict=True)
    ]
    # 2. A row for each configuration.
    outcomes: list[Outcome] = []
    for tuning, values in zip(tunings, cells, strict=True):
        key = zip(names, values, is_size, strict=True)
        problem = {each: int(value) if whole else value or "none" for each, value, whole in key}
        problem |= {"gpu": gpu, "origin": f"{tuning.path.parent.name}/{tuning.path.name}"}
        for configuration, times in tuning.timings:
            outcomes.append(outcome(problem, configuration, [*times, None][0], spread_ms=times[1:], reason=_FAILED))
    sizes, settings = (
        [each for each, whole in zip(names, is_size, strict=True) if whole is kind] for kind in (True, False)
    )
    return tuned(outcomes, kernel, sizes=sizes, settings=settings, where=paths[0])


_KEYS = Option("For triton: names of the values in the kernel's key, as in m,n,k.", "NAMES")
FORMAT = Format("triton", "Triton's autotuning caches", read, own={"keys": _KEYS}, finds_files=True)


def _files(paths: Paths) -> list[Path]:
    """The files themselves, and those in the folders."""
    files: list[Path] = []
    for path in map(Path, paths):
        inside = sorted(each for each in path.rglob(f"*{ENDING}") if each.is_file()) if path.is_dir() else [path]
        if not inside:
            raise InputError(f"{path}: a folder without NAME{ENDING}; tune with cache_results=True")
        files += inside
    if not files:
        raise InputError("no triton file given; give a cache folder, such as ~/.triton/cache, or files")
    return files


def _tuning(path: Path, limits: Limits) -> _Tuning:
    """The content of a file. Raises `InputError`."""
    content = parsed_json(read_bytes(path, **limits), path, _REMEDY)
    try:
        key = [str(value).removeprefix("torch.") for value in content["key"]]
        timings = []
        for configuration, timing in content["configs_timings"]:
            own = {name: value for name, value in configuration.items() if name not in ("kwargs", "pre_hook")}
            timings.append(({**configuration["kwargs"], **own}, [*timing] if isinstance(timing, list) else [timing]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path}: not whole ({type(error).__name__}: {str(error)[:80]}); {_REMEDY}") from None
    dtypes = takewhile(_DTYPE.fullmatch, reversed(key))
    return _Tuning(path, key, len(key) - len([*dtypes]), timings)
