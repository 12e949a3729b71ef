"""Kernel Tuner's caches and T4 results, with T1 files for a kernel's parameters and conditions.

How to get them: ``tune_kernel(..., cache="NAME.json")`` writes a cache while it tunes. If the run was stopped, all
complete entries are read. ``store_output_file("NAME.T4.json", results, tune_params)`` of kernel_tuner.file_utils
writes T4. A T4 file names no GPU, so give --gpu. Public files: github.com/AutoTuningAssociation/benchmark_hub. Files
may be packed as .gz.

Files of several GPUs and problem sizes become one table. A T1 file among the paths adds the values of the parameters,
the conditions, and the problem size if the results have none. The time is Kernel Tuner's own, by default the mean of
the runs. The minimum and the maximum are taken over the runs.
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
from surrogate.formats.tuned import TunedKernel, TunedRow, is_time, one_kernel, outcome, readable, tuned

_AXES = ("size_x", "size_y", "size_z")
_UNITS_MS = {"": 1.0, "ms": 1.0, "milliseconds": 1.0, "miliseconds": 1.0, "s": 1e3, "seconds": 1e3}
_UNITS_MS |= {"us": 1e-3, "µs": 1e-3, "microseconds": 1e-3, "ns": 1e-6, "nanoseconds": 1e-6}
_ENTRY = re.compile(r'[\s,]*"([^"]*)"\s*:\s*')


_Measured = tuple[dict[str, Any], Any, list[Any]]
"""A configuration, its time in ms or the name of an error, and the times of its runs."""


class _File(NamedTuple):
    """The content of a file. T4 names neither kernel nor sizes. T1 has conditions and no outcomes."""

    path: Path
    kernel: str
    sizes: dict[str, int]
    values: dict[str, list[Any]]
    outcomes: list[TunedRow]
    conditions: list[str] | None = None


def read(paths: Paths, *, gpu: str | None = None, name: str | None = None, **limits: Unpack[ReadLimits]) -> Imported:
    """Read the configurations of one kernel. ``gpu`` overrides the files, ``name`` chooses among kernels.

    Raises `InputError` with the file.
    """
    notes: list[str] = []
    files = [_file(Path(path), gpu, notes, limits) for path in paths]
    spaces = [file for file in files if file.conditions is not None]
    runs = [file for file in files if file.conditions is None]
    if len(spaces) > 1 or not runs:
        message = f"{len(spaces)} T1 files and {len(runs)} others given; give at most one T1 file, and results"
        raise InputError(f"{spaces[-1].path}: {message}")
    space = spaces[0] if spaces else _File(Path(), "", {}, {}, [])
    # 1. One kernel. Its configurations have the same parameters in all files.
    kernel = one_kernel({run.kernel for run in runs} - {""} or {space.kernel or name or "kernel"}, name, paths[0])
    runs = [run for run in runs if run.kernel in ("", kernel)]
    outcomes = [each for run in runs for each in run.outcomes]
    parameters = {frozenset(configuration) for _, configuration in outcomes} | {frozenset(s.values) for s in spaces}
    if len(parameters) > 1:
        odd = sorted(frozenset.union(*parameters) - frozenset.intersection(*parameters))
        raise InputError(f"{paths[0]}: not all files have the parameters {', '.join(odd)}; give files of one kernel")
    # 2. Sizes along the same axes. A missing axis has size 1.
    names = [axis for axis in _AXES if any(axis in (run.sizes or space.sizes) for run in runs)]
    notes += ["the files have no problem size; they are read as one problem"] * (not names and len(runs) > 1)
    for run in runs:
        sizes = run.sizes or space.sizes
        if names and not sizes:
            message = "the file has no problem size, other files have one; add its T1 file, or leave the file out"
            raise InputError(f"{run.path}: {message}")
        for row, _ in run.outcomes:
            row.update({axis: sizes.get(axis, 1) for axis in names})
    values = [file.values for file in (space, *runs)]
    return tuned(TunedKernel(kernel, names, (), values, space.conditions), outcomes, paths[0], notes)


FORMAT = Format("kernel-tuner", "Kernel Tuner's caches, T4 results and T1 files", read)


def _file(path: Path, gpu: str | None, notes: list[str], limits: ReadLimits) -> _File:
    """Read one file. Raises `InputError` for a file of another kind, and for a missing field."""
    text = read_bytes(path, **limits).decode("utf-8-sig", "replace")
    with readable(path, "give a cache, T4 or T1 file of Kernel Tuner"):
        try:
            content = json.loads(text)
        except (ValueError, RecursionError):
            content = _complete_part(text)
            count = plural(len(content["cache"]), "complete configuration")
            notes.append(f"{path.name}: the file is cut off; {count} read")
        if "ConfigurationSpace" in content:
            return _space(path, content, notes)
        device = gpu or content.get("device_name")
        if not isinstance(device, str) or not device:
            raise InputError(f"{path}: the file names no GPU; give it with --gpu")
        problem = {"gpu": device, "origin": path.name}
        measured = _results(path, content) if "results" in content else _entries(content)
        outcomes = [
            outcome(problem, configuration, ms, spread_ms=runs, repeats=len(runs) or 1)
            for configuration, ms, runs in measured
        ]
        values = {parameter: [*listed] for parameter, listed in content.get("tune_params", {}).items()}
        sizes = _sizes(path, content.get("problem_size"))
        return _File(path, str(content.get("kernel_name", "")), sizes, values, outcomes)


def _complete_part(text: str) -> dict[str, Any]:
    """Return the complete entries of a cache that was cut off."""
    head, _, rest = text.partition('"cache": {')
    content = json.loads(head.rstrip(", \r\n") + "}")
    content["cache"] = {}
    position = 0
    with suppress(ValueError, RecursionError):
        while key := _ENTRY.match(rest, position):
            content["cache"][key[1]], position = json.JSONDecoder().raw_decode(rest, key.end())
    return content


def _entries(content: dict[str, Any]) -> Iterator[_Measured]:
    """Yield the configurations of a cache."""
    for entry in content["cache"].values():
        runs = [*filter(is_time, entry.get("times") or ())]
        time_ms = entry.get("__error__") or (entry["time"] if "time" in entry else median(runs))
        yield {parameter: entry[parameter] for parameter in content["tune_params_keys"]}, time_ms, runs


def _results(path: Path, content: dict[str, Any]) -> Iterator[_Measured]:
    """Yield the configurations of a T4 file. A measurement's own unit overrides the unit of the file."""
    unit = (content.get("metadata") or {}).get("timeunit") or ""
    for result in content["results"]:
        runs = [_ms(path, each, unit) for each in result["times"].get("runtimes") or () if is_time(each)]
        own = next((each for each in result.get("measurements") or () if each["name"] == "time"), None)
        time_ms = result["invalidity"]
        if time_ms == "correct":
            time_ms = _ms(path, own["value"], own.get("unit") or unit) if own else median(runs)
        yield {**result["configuration"]}, time_ms, runs


def _space(path: Path, content: dict[str, Any], notes: list[str]) -> _File:
    """Return the lists of values and the conditions of a T1 file."""
    values: dict[str, list[Any]] = {}
    for parameter in content["ConfigurationSpace"]["TuningParameters"]:
        listed = parameter["Values"]
        try:
            listed = ast.literal_eval(listed[: 1 << 16].strip()) if isinstance(listed, str) else listed
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            notes.append(
                f"{path.name}: the values of {parameter['Name']} are not a list; the other files' values count"
            )
            listed = ()
        values[str(parameter["Name"])] = [*listed]
    conditions = [str(each["Expression"]) for each in content["ConfigurationSpace"].get("Conditions") or ()]
    kernel = content["KernelSpecification"]
    return _File(path, str(kernel["KernelName"]), _sizes(path, kernel.get("ProblemSize")), values, [], conditions)


def _sizes(path: Path, problem_size: object) -> dict[str, int]:
    """Return the integers of a problem size by axis. A text, such as a formula of the parameters, is skipped."""
    given = problem_size if isinstance(problem_size, list) else [problem_size]
    axes = zip(_AXES, given, strict=False)
    return {
        axis: checked_int(str(path), "problem_size", each) for axis, each in axes if not isinstance(each, str | None)
    }


def _ms(path: Path, time: Any, unit: str) -> Any:
    """Return a time in ms; a value that is not a time is returned unchanged."""
    check_choice(f"{path}: time unit", unit, _UNITS_MS)
    return time * _UNITS_MS[unit] if is_time(time) else time
