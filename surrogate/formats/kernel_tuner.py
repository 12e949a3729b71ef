"""Results of Kernel Tuner and KTT: caches, T4 files, lists and KTT's JSON, with T1 files for values and conditions.

How to get them: ``tune_kernel(..., cache="NAME.json")`` writes a cache while it tunes. If the run was stopped, all
complete entries are read. ``store_output_file("NAME.T4.json", results, tune_params)`` of kernel_tuner.file_utils
writes T4. Kernel Tuner before 1.0 returns a list of configurations, or the pair of list and environment: save it with
``json.dump``. KTT writes with ``tuner.SaveResults(results, "NAME", OutputFormat.JSON)``, or JSON_T4. If a file names no
GPU, give --gpu. Public files: github.com/AutoTuningAssociation/benchmark_hub. Files may be packed as .gz.

Files of several GPUs and problem sizes become one table. A T1 file among the paths adds the values of the parameters,
the conditions, and the problem size if the results have none. The time is Kernel Tuner's own, by default the mean of
the runs. The minimum and the maximum are taken over the runs. T4 files and KTT's JSON state their unit of time; in T4,
the time is the first objective with such a unit. A file whose units contradict each other is refused.
"""

import ast
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, Unpack

from surrogate.features import InputError, checked_int, read_toml
from surrogate.features.errors import parsed_json
from surrogate.formats import Format
from surrogate.formats.foreign_file import Paths, ReadLimits, read_bytes, readable
from surrogate.formats.imported import Imported, plural
from surrogate.formats.printed import TIME_US, compiled
from surrogate.formats.tuned import TunedKernel, TunedRow, is_time, number, one_kernel, outcome, tuned

_AXES = ("size_x", "size_y", "size_z")
_MAX_RATIO = 10.0
"""Maximum ratio of a time to its longest run. If units contradict each other, the ratio is 1,000 or more."""
_TIME, _RESULT, _ENTRY = compiled(read_toml(__file__)["patterns"])
"""Names of times in T4, if no objective is one; results in a list, whose other keys are parameters; a cache's key."""


_Measured = tuple[str, dict[str, Any], Any, list[Any]]
"""A kernel's name, a configuration, its time in ms or the name of an error, and the times of its runs."""


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
    files = [file for path in paths for file in _files(Path(path), gpu, notes, limits)]
    spaces = [file for file in files if file.conditions is not None]
    runs = [file for file in files if file.conditions is None]
    if len(spaces) > 1 or not runs:
        counts = f"{len(spaces)} T1 files and {len(runs)} others given"
        raise InputError(f"{spaces[-1].path}: {counts}; give at most one T1 file, and results")
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
            raise InputError(f"{run.path}: the file has no problem size, others have; add its T1 file, or leave it out")
        for row, _ in run.outcomes:
            row.update({axis: sizes.get(axis, 1) for axis in names})
    values = [file.values for file in (space, *runs)]
    return tuned(TunedKernel(kernel, names, (), values, space.conditions), outcomes, paths[0], notes)


FORMAT = Format("kernel-tuner", "Kernel Tuner's caches, T4, T1 files and lists; KTT's JSON", read)


def _files(path: Path, gpu: str | None, notes: list[str], limits: ReadLimits) -> list[_File]:
    """Read one file; KTT's JSON may hold several kernels. Raises `InputError` for a file of another kind."""
    data = read_bytes(path, **limits)
    with readable(path, "give a cache, T4 or T1 file of Kernel Tuner, its list of results, or KTT's JSON"):
        try:
            content = parsed_json(data, "replace")
        except (json.JSONDecodeError, RecursionError):
            content = _complete_part(data.decode("utf-8-sig", "replace"))
            count = plural(len(content["cache"]), "complete configuration")
            notes.append(f"{path.name}: the file is cut off; {count} read")
        if isinstance(content, list):
            content = _of_list(content, notes)
        if "ConfigurationSpace" in content:
            return [_space(path, content, notes)]
        metadata = content.get("Metadata") or content.get("metadata") or {}
        device = gpu or content.get("device_name") or metadata.get("Device") or metadata.get("device")
        if not isinstance(device, str) or not device:
            raise InputError(f"{path}: the file names no GPU; give it with --gpu")
        readers = {"Results": _ktt_results, "results": _results}
        reader = next((readers[key] for key in readers if key in content), _entries)
        problem = {"gpu": device, "origin": path.name}
        outcomes: dict[str, list[TunedRow]] = {}
        for kernel, configuration, ms, runs in reader(path, content, notes):
            row = outcome(problem, configuration, ms, spread_ms=runs, repeats=len(runs) or 1)
            outcomes.setdefault(kernel, []).append(row)
        values = {parameter: [*listed] for parameter, listed in content.get("tune_params", {}).items()}
        sizes = _sizes(path, content.get("problem_size"))
        return [_File(path, kernel, sizes, values, rows) for kernel, rows in (outcomes or {"": []}).items()]


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


def _entries(path: Path, content: dict[str, Any], notes: list[str]) -> Iterator[_Measured]:
    """Yield the configurations of a cache."""
    kernel = str(content.get("kernel_name", ""))
    for entry in content["cache"].values():
        runs = [*filter(is_time, entry.get("times") or ())]
        time_ms = entry.get("__error__") or (entry["time"] if "time" in entry else median(runs))
        yield kernel, {parameter: entry[parameter] for parameter in content["tune_params_keys"]}, time_ms, runs


def _of_list(content: list[Any], notes: list[str]) -> dict[str, Any]:
    """Return a list of configurations, or the pair of that list and the environment, as a cache."""
    entries, environment = content if len(content) == 2 and isinstance(content[0], list) else (content, {})
    first = entries[0] if entries else {}  # a failed configuration lacks some results
    keys = [key for key in first if not _RESULT.fullmatch(key) and all(key in entry for entry in entries)]
    metrics = [key for key in keys if _is_metric([entry.get(key) for entry in entries])]
    notes += [f"read as results, not as parameters: {', '.join(metrics)}"] * bool(metrics)
    parameters = [key for key in keys if key not in metrics]
    return {**environment, "tune_params_keys": parameters, "cache": dict(enumerate(entries))}


def _is_metric(values: list[Any]) -> bool:
    """Return True if more than two values are fractions that never repeat."""
    return len({*map(str, values)}) == len(values) > 2 and all(isinstance(v, float) and v % 1 for v in values)


def _results(path: Path, content: dict[str, Any], notes: list[str]) -> Iterator[_Measured]:
    """Yield the configurations of a T4 file. The unit of a measurement overrides the unit of the file.

    Raises `InputError` for an unknown unit, and if a time and its runs contradict each other.
    """
    stated = str((content.get("metadata") or {}).get("timeunit") or "")
    is_unstated = False
    for result in content["results"]:
        own = _time(result)
        unit = own.get("unit") or stated
        is_unstated |= not unit
        runs = [_ms(path, each, stated or unit) for each in result["times"].get("runtimes") or () if is_time(each)]
        time_ms = result["invalidity"]
        if time_ms == "correct":
            time_ms = _ms(path, own["value"], unit) if own else median(runs)
            if runs and is_time(time_ms) and not min(runs) / _MAX_RATIO < time_ms < max(runs) * _MAX_RATIO:
                found = f"the unit {unit} gives a time of {time_ms:g} ms, {stated or unit} gives runs of {runs[0]:g} ms"
                raise InputError(f"{path}: {found}; correct the wrong unit")
        configuration = {name: number(value) for name, value in result["configuration"].items()}
        yield str(content.get("kernel_name", "")), configuration, time_ms, runs
    notes += [f"{path.name}: the file states no unit of time; its times are read as ms"] * is_unstated


def _time(result: dict[str, Any]) -> dict[str, Any]:
    """Return the measured time: the first objective with a unit or name of a time, otherwise one with its name."""
    measured = {str(each["name"]): each for each in result.get("measurements") or ()}
    given = [name for name in result.get("objectives") or () if name in measured]
    times = [name for name in given if "time" in name.lower() or _unit_us(measured[name].get("unit"))]
    return next((measured[name] for name in (*times, *filter(_TIME.search, measured))), {})


def _ktt_results(path: Path, content: dict[str, Any], notes: list[str]) -> Iterator[_Measured]:
    """Yield the configurations of KTT's own JSON."""
    for result in content["Results"]:
        time_ms = status = str(result.get("Status", "Ok"))
        if status.lower() == "ok":
            time_ms = _ms(path, result["TotalDuration"], content["Metadata"]["TimeUnit"])
        yield str(result["KernelName"]), {str(p["Name"]): p["Value"] for p in result["Configuration"]}, time_ms, []


def _space(path: Path, content: dict[str, Any], notes: list[str]) -> _File:
    """Return the lists of values and the conditions of a T1 file."""
    values: dict[str, list[Any]] = {}
    for parameter in content["ConfigurationSpace"]["TuningParameters"]:
        listed = parameter["Values"]
        try:
            listed = ast.literal_eval(listed[: 1 << 16].strip()) if isinstance(listed, str) else listed
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            ignored = f"the values of {parameter['Name']} are not a list"
            notes.append(f"{path.name}: {ignored}; the other files' values count")
            listed = ()
        values[str(parameter["Name"])] = [*listed]
    conditions = [str(each["Expression"]) for each in content["ConfigurationSpace"].get("Conditions") or ()]
    kernel = content["KernelSpecification"]
    return _File(path, str(kernel["KernelName"]), _sizes(path, kernel.get("ProblemSize")), values, [], conditions)


def _sizes(path: Path, problem_size: object) -> dict[str, int]:
    """Return the integers of a problem size by axis. A text, such as a formula of the parameters, is skipped."""
    given = problem_size if isinstance(problem_size, list) else [problem_size]
    numbers = [(axis, each) for axis, each in zip(_AXES, given, strict=False) if not isinstance(each, str | None)]
    return {axis: checked_int(str(path), "problem_size", each) for axis, each in numbers}


def _ms(path: Path, time: Any, unit: Any) -> Any:
    """Return a time in ms; a value that is not a time is returned unchanged. An empty unit is ms."""
    unit_us = _unit_us(unit or "ms")
    if unit_us is None:
        raise InputError(f"{path}: time unit {str(unit)[:40]!r} is unknown; known: ns, us, ms, s and their full names")
    return time * unit_us / 1e3 if is_time(time) else time


def _unit_us(unit: Any) -> float | None:
    return TIME_US.get(str(unit).strip().lower())
