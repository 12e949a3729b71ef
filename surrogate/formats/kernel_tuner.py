"""Kernel Tuner's caches and T4 results, with T1 files for a kernel's parameters and conditions.

How to get them: ``tune_kernel(..., cache="NAME.json")`` writes a cache while it tunes; of a stopped run all whole
entries are read. T4 is what ``store_output_file("NAME.T4.json", results, tune_params)`` of kernel_tuner.file_utils
writes; it names no GPU, so give --gpu. github.com/AutoTuningAssociation/benchmark_hub has public ones, .gz is read.

Files of several GPUs and problem sizes become one table. A T1 file among the paths adds the values of parameters, the
conditions, and the problem size of results that do not tell it. A time is Kernel Tuner's own, by default the mean of
its runs; least and greatest are those of the runs.
"""

import ast
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, Unpack

from surrogate.features.elementwise import checked_int
from surrogate.features.errors import InputError, check_choice
from surrogate.formats import Format
from surrogate.formats.foreign_file import Paths, ReadLimits, read_bytes
from surrogate.formats.imported import Imported, plural
from surrogate.formats.tuned import Outcome, TunedKernel, is_time, one_kernel, outcome, readable, tuned

_AXES = ("size_x", "size_y", "size_z")
_UNITS_MS = {"": 1.0, "ms": 1.0, "milliseconds": 1.0, "miliseconds": 1.0, "s": 1e3, "seconds": 1e3}
_UNITS_MS |= {"us": 1e-3, "µs": 1e-3, "microseconds": 1e-3, "ns": 1e-6, "nanoseconds": 1e-6}
_ENTRY = re.compile(r'[\s,]*"([^"]*)"\s*:\s*')


_Measured = tuple[dict[str, Any], Any, list[Any]]
"""A configuration, its time in ms or the name of an error, and the times of its runs."""


class _File(NamedTuple):
    """What a file tells. T4 names neither kernel nor sizes; T1 has no outcomes, and it alone has conditions."""

    path: Path
    kernel: str
    sizes: dict[str, int]
    values: dict[str, list[Any]]
    outcomes: list[Outcome]
    conditions: list[str] | None = None


def read(paths: Paths, *, gpu: str | None = None, name: str | None = None, **limits: Unpack[ReadLimits]) -> Imported:
    """The configurations of one kernel; ``gpu`` replaces what the files say, ``name`` chooses among kernels.

    Raises `InputError` naming the file.
    """
    notes: list[str] = []
    files = [_file(Path(path), gpu, notes, limits) for path in paths]
    spaces = [file for file in files if file.conditions is not None]
    runs = [file for file in files if file.conditions is None]
    if len(spaces) > 1 or not runs:
        raise InputError(f"{spaces[-1].path}: {len(spaces)} T1 files, {len(runs)} others; name one beside such")
    space = spaces[0] if spaces else _File(Path(), "", {}, {}, [])
    # 1. One kernel, whose configurations have the same parameters in all files.
    kernel = one_kernel({run.kernel for run in runs} - {""} or {space.kernel or name or "kernel"}, name, paths[0])
    runs = [run for run in runs if run.kernel in ("", kernel)]
    outcomes = [each for run in runs for each in run.outcomes]
    parameters = {frozenset(configuration) for _, configuration in outcomes} | {frozenset(s.values) for s in spaces}
    if len(parameters) > 1:
        odd = sorted(frozenset.union(*parameters) - frozenset.intersection(*parameters))
        raise InputError(f"{paths[0]}: not all files have the parameters {', '.join(odd)}; name files of one kernel")
    # 2. Sizes along the same axes, 1 where a problem has none.
    names = [axis for axis in _AXES if any(axis in (run.sizes or space.sizes) for run in runs)]
    notes += ["the files tell no problem size, and are taken as of one problem"] * (not names and len(runs) > 1)
    for run in runs:
        sizes = run.sizes or space.sizes
        if names and not sizes:
            raise InputError(f"{run.path}: it tells no problem size, other files do; name its T1 file, or leave it out")
        for row, _ in run.outcomes:
            row.update({axis: sizes.get(axis, 1) for axis in names})
    values = [file.values for file in (space, *runs)]
    return tuned(TunedKernel(kernel, names, (), values, space.conditions), outcomes, paths[0], notes)


FORMAT = Format("kernel-tuner", "Kernel Tuner's caches, T4 results and T1 files", read)


def _file(path: Path, gpu: str | None, notes: list[str], limits: ReadLimits) -> _File:
    """Raises `InputError` for a file of another kind, and for what one lacks."""
    text = read_bytes(path, **limits).decode("utf-8-sig", "replace")
    with readable(path, "give a cache, T4 or T1 file of Kernel Tuner"):
        try:
            content = json.loads(text)
        except (ValueError, RecursionError):
            content = _whole_part(text)
            notes.append(f"{path.name}: cut off; its {plural(len(content['cache']), 'whole configuration')} read")
        if "ConfigurationSpace" in content:
            return _space(path, content, notes)
        device = gpu or content.get("device_name")
        if not isinstance(device, str) or not device:
            raise InputError(f"{path}: names no GPU; give it with --gpu")
        problem = {"gpu": device, "origin": path.name}
        measured = _results(path, content) if "results" in content else _entries(content)
        outcomes = [outcome(problem, its, ms, spread_ms=runs, repeats=len(runs) or 1) for its, ms, runs in measured]
        values = {parameter: [*listed] for parameter, listed in content.get("tune_params", {}).items()}
        sizes = _sizes(path, content.get("problem_size"))
        return _File(path, str(content.get("kernel_name", "")), sizes, values, outcomes)


def _whole_part(text: str) -> dict[str, Any]:
    """A cache that was cut off: the decoder reads entry after entry until one is no longer whole."""
    head, _, rest = text.partition('"cache": {')
    content = json.loads(head.rstrip(", \r\n") + "}")
    content["cache"] = {}
    position = 0
    with suppress(ValueError, RecursionError):
        while key := _ENTRY.match(rest, position):
            content["cache"][key[1]], position = json.JSONDecoder().raw_decode(rest, key.end())
    return content


def _entries(content: dict[str, Any]) -> Iterator[_Measured]:
    """The configurations of a cache."""
    for entry in content["cache"].values():
        runs = [*filter(is_time, entry.get("times") or ())]
        time_ms = entry.get("__error__") or (entry["time"] if "time" in entry else median(runs))
        yield {parameter: entry[parameter] for parameter in content["tune_params_keys"]}, time_ms, runs


def _results(path: Path, content: dict[str, Any]) -> Iterator[_Measured]:
    """Those of T4: times in the unit of the file, those under measurements in their own where they have one."""
    unit = (content.get("metadata") or {}).get("timeunit") or ""
    for result in content["results"]:
        runs = [_ms(path, each, unit) for each in result["times"].get("runtimes") or () if is_time(each)]
        own = next((each for each in result.get("measurements") or () if each["name"] == "time"), None)
        time_ms = result["invalidity"]
        if time_ms == "correct":
            time_ms = _ms(path, own["value"], own.get("unit") or unit) if own else median(runs)
        yield {**result["configuration"]}, time_ms, runs


def _space(path: Path, content: dict[str, Any], notes: list[str]) -> _File:
    """T1: the lists of values that are written as such, and the conditions."""
    values: dict[str, list[Any]] = {}
    for parameter in content["ConfigurationSpace"]["TuningParameters"]:
        listed = parameter["Values"]
        try:
            listed = ast.literal_eval(listed[: 1 << 16].strip()) if isinstance(listed, str) else listed
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            notes.append(f"{path.name}: the values of {parameter['Name']} are no list; those of the other files count")
            listed = ()
        values[str(parameter["Name"])] = [*listed]
    conditions = [str(each["Expression"]) for each in content["ConfigurationSpace"].get("Conditions") or ()]
    kernel = content["KernelSpecification"]
    return _File(path, str(kernel["KernelName"]), _sizes(path, kernel.get("ProblemSize")), values, [], conditions)


def _sizes(path: Path, problem_size: object) -> dict[str, int]:
    """The whole numbers of a problem size by axis; a text, such as a formula of the parameters, is no size."""
    given = problem_size if isinstance(problem_size, list) else [problem_size]
    axes = zip(_AXES, given, strict=False)
    return {
        axis: checked_int(str(path), "problem_size", each) for axis, each in axes if not isinstance(each, str | None)
    }


def _ms(path: Path, time: Any, unit: str) -> Any:
    """A time in ms; what is none as it is."""
    check_choice(f"{path}: time unit", unit, _UNITS_MS)
    return time * _UNITS_MS[unit] if is_time(time) else time
