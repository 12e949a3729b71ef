"""Runs → one dataset: a row per (device, settings, problem, algorithm), and a table of kernels keyed alike.

Shards of a plan and runs of other devices go together. A problem measured several times (anchors, or two runs) becomes
one row: its time is the median of the visits' medians, and how far the visits drifted is told in the metadata. Logs of
``--heuristic-only`` become a table of rankings, without status and time; logs of operators a table of their own.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from surrogate.collect import log
from surrogate.collect.device import Measurement, choices, demangled
from surrogate.collect.log import Header, conv_of, key_without_visit
from surrogate.collect.operators.operator import parse
from surrogate.collect.protocol import drift, slow_clocks, summarise, throttled, trend
from surrogate.dataset.columns import columns
from surrogate.dataset.store import Dataset
from surrogate.features.errors import InputError
from surrogate.features.families import FAMILY_OF_KIND

DEVICE_COLUMNS = ("gpu", "library", "library_version")


class Key(NamedTuple):
    """Names one row: device, problem with settings, algorithm."""

    device: tuple[str, str, str]
    problem: str
    algorithm: str


@dataclass(slots=True)
class ProblemNotes:
    """What is known of one problem on one device beside its measurements."""

    origin: str = ""
    networks: dict[str, None] = field(default_factory=dict)
    heuristic: str | None = None
    find_us: dict[str, list[float]] = field(default_factory=dict)


class Visit(NamedTuple):
    """One measurement, and when it was taken (Unix time)."""

    result: Measurement
    at_s: float


Run = tuple[str, ...]
"""Names a run: when it began, plan, shard, device. Copies of its log, however short, are the same run."""


@dataclass(slots=True)
class Gathered:
    """Everything, in the order it was first seen; ``duplicates`` counts measurements that stood in two files."""

    visits: dict[Key, dict[tuple[Run, str], Visit]] = field(default_factory=dict)
    """Row → (run, problem with visit) → its measurement."""
    notes: dict[tuple[tuple[str, str, str], str], ProblemNotes] = field(default_factory=dict)
    conditions: dict[Run, dict[str, Mapping[str, float]]] = field(default_factory=dict)
    """Run → problem with visit → clocks sampled after it; a problem that was cut before has none."""
    counters: dict[Key, list[Mapping[str, Any]]] = field(default_factory=dict)
    """Row → its counted kernels in launch order; of a row counted twice the last."""
    duplicates: int = 0


def gather(header: Header, records: Iterable[Mapping[str, Any]], gathered: Gathered) -> None:
    """Take one run's records; the same visit of the same run taken before is a duplicate.

    Raises `InputError`, or what the damage leads to, for a record that names no problem or holds no measurement.
    """
    device = _device(header)
    run = (str(header.created_s), header.plan_digest, *map(str, header.shard), *device)
    conditions = gathered.conditions.setdefault(run, {})
    for record in records:
        kind, visit = record["kind"], record["problem"]
        if kind == "operator":  # another table's (`surrogate.collect.operators`)
            continue
        key = key_without_visit(visit)
        math_type = conv_of(key).math
        problem = gathered.notes.setdefault((device, key), ProblemNotes())
        if kind == "problem":
            _note_problem(problem, record)
        elif kind == "measure":
            visits = gathered.visits.setdefault(Key(device, key, record["algorithm"]), {})
            gathered.duplicates += (run, visit) in visits
            visits.setdefault((run, visit), Visit(_sound(record["result"]), record.get("at_s", 0.0)))
        elif kind == "counters":
            gathered.counters[Key(device, key, record["algorithm"])] = record["kernels"]
        elif visit not in conditions:
            conditions[visit] = record["conditions"]
            for choice in choices(record["find"]):
                if choice.time_us is not None and choice.math in (None, math_type):
                    problem.find_us.setdefault(choice.algorithm, []).append(choice.time_us)


def _note_problem(problem: ProblemNotes, record: Mapping[str, Any]) -> None:
    problem.origin = problem.origin or record["origin"]
    problem.networks.update(dict.fromkeys(record["networks"]))
    ranking = [choice for choice in choices(record["heuristic"]) if choice.status == "ok"]
    if ranking and problem.heuristic is None:
        problem.heuristic = ranking[0].algorithm


class Clock(NamedTuple):
    """A measurement's SM clock (None where unknown), whether it was low within its run, whether it was held down."""

    mhz: float | None = None
    slow: bool = False
    throttled: bool = False


def _clocks(gathered: Gathered) -> dict[tuple[Key, Run, str], Clock]:
    """Row, run and visit → the clock while its repeats ran, or else the one sampled after its problem."""
    by_run: dict[Run, list[tuple[Key, str, Mapping[str, Any]]]] = {}
    for key, visits in gathered.visits.items():
        for (run, visit), (result, _) in visits.items():
            load = {"sm_clock_mhz": result.sm_clock_mhz, "throttle_reasons": result.throttle_reasons}
            after = gathered.conditions[run].get(visit, {})
            by_run.setdefault(run, []).append((key, visit, after if result.sm_clock_mhz is None else load))
    clocks = {}
    for run, sampled in by_run.items():
        known_mhz = [conditions.get("sm_clock_mhz") for _, _, conditions in sampled]
        for (key, visit, conditions), mhz, slow in zip(sampled, known_mhz, slow_clocks(known_mhz), strict=True):
            clocks[key, run, visit] = Clock(mhz, slow, throttled(conditions.get("throttle_reasons")))
    return clocks


def _sound(result: Mapping[str, Any]) -> Measurement:
    """The measurement; one with a time that is no time (0, not finite) is ``failed``."""
    measured = Measurement.from_dict(result)
    wrong = [time for time in (*measured.times_us, *measured.spans_us) if not 0 < time < math.inf]
    return Measurement("failed", f"a repeat of {wrong[0]:g} µs") if wrong else measured


def merge_runs(paths: Sequence[str | Path]) -> Dataset:
    """The dataset that the logs at ``paths`` hold together: measured runs, rankings or operators.

    Its kernels are empty where none were seen. Candidates are ``all`` where every algorithm of a problem is tried: one
    without a row is unmeasured.

    Raises `InputError` for a file that is no log, where no log holds anything, or where several kinds came.
    """
    logs = [(Path(path), log.read(path)) for path in paths]
    held = [(path, known.header, known.records) for path, known in logs if known.header is not None]
    kinds = {_kind(header, records): path for path, header, records in held}
    if len(kinds) > 1:
        described = " and ".join(f"{path} holds {kind}" for kind, path in kinds.items())
        raise InputError(f"{described}; merge each kind into a table of its own")
    special = {"rankings without times": _rankings, "operators": _operators}
    merge = special.get(next(iter(kinds), ""), _measured)
    named = ", ".join(map(str, paths)) or "nothing"
    with log.undamaged(named, refusals=True):
        merged = merge(held, {"runs": [header.to_dict() for _, header, _ in held]})
    if merged.frame.empty:
        raise InputError(f"{named}: no measurement or ranking to merge; collect some first")
    return merged


def _kind(header: Header, records: Sequence[Mapping[str, Any]]) -> str:
    if header.protocol.get("heuristic_only"):
        return "rankings without times"
    return "operators" if any(record["kind"] == "operator" for record in records) else "measurements"


Log = tuple[Path, Header, Sequence[Mapping[str, Any]]]
"""Path, header, records."""


def _device(header: Header) -> tuple[str, str, str]:
    return header.device.gpu, header.device.library, header.device.library_version


def _table(rows: list[dict[str, Any]], table: str) -> pd.DataFrame:
    """``rows`` with the declared columns of ``table`` in their order and type; text or None where it is text."""
    frame = pd.DataFrame(rows)
    kinds = {column.name: column.kind for column in columns(table) if column.name in frame}
    types: Any = {name: kind for name, kind in kinds.items() if kind != "text"}
    return frame[list(kinds)].astype(types)


def _measured(runs: Sequence[Log], metadata: dict[str, Any]) -> Dataset:
    gathered = Gathered()
    for path, header, records in runs:
        with log.undamaged(path):
            gather(header, records, gathered)
    metadata |= {"anchors": _anchors(gathered), "duplicates_dropped": gathered.duplicates}
    clocks = _clocks(gathered)
    rows = [_row(key, gathered, clocks) for key in gathered.visits]
    launches = _kernels(gathered)
    if gathered.counters:
        metadata["counted_kernels"] = sum(map(len, gathered.counters.values()))
        metadata["counted_kernels_joined"] = sum("counted_time_us" in launch for launch in launches)
    frame, kernels = _table(rows, "dataset"), _table(launches, "kernels")
    return Dataset(frame, metadata=metadata, kernels=kernels)


def _settings(key: Key) -> dict[str, Any]:
    """What every row of ``key`` begins with."""
    device = dict(zip(DEVICE_COLUMNS, key.device, strict=True))
    return {**device, **conv_of(key.problem).to_dict(), "algorithm": key.algorithm}


def _row(key: Key, gathered: Gathered, clocks: Mapping[tuple[Key, Run, str], Clock]) -> dict[str, Any]:
    problem = gathered.notes[key.device, key.problem]
    sampled = [clocks[key, *place] for place in gathered.visits[key]]
    visits = list(gathered.visits[key].values())
    ok = [visit for visit in visits if visit.result.status == "ok"]
    shown = (ok or visits)[0].result
    find_us = problem.find_us.get(key.algorithm)
    clocks_mhz = [clock.mhz for clock in sampled if clock.mhz]
    return {
        **_settings(key),
        "status": shown.status,
        "workspace_bytes": shown.workspace_bytes,
        "deterministic": shown.deterministic,
        "find_time_us": statistics.median(find_us) if find_us else None,
        "heuristic_algorithm": problem.heuristic,
        "networks": ",".join(problem.networks) or None,
        "origin": problem.origin,
        "reason": shown.reason or None,
        "sm_clock_mhz": statistics.median(clocks_mhz) if clocks_mhz else None,
        "slow_clock": any(clock.slow for clock in sampled),
        "throttled": any(clock.throttled for clock in sampled),
        **_times([visit.result for visit in ok]),
    }


def _times(results: Sequence[Measurement]) -> dict[str, Any]:
    """The time columns of measurements of one problem, all of them ok; empty columns where there is none."""
    if not results:
        empty = ("time_us", "time_us_min", "time_us_max", "time_us_mad", "span_us", "stable", "timer")
        return {**dict.fromkeys(empty), "repeats": 0}
    summaries = [summarise(result.times_us) for result in results]
    judged = [summary.stable for summary in summaries if summary.repeats > 1]
    spans = [statistics.median(result.spans_us) for result in results if result.spans_us]
    return {
        "time_us": statistics.median(summary.median_us for summary in summaries),
        "time_us_min": min(summary.min_us for summary in summaries),
        "time_us_max": max(summary.max_us for summary in summaries),
        "time_us_mad": statistics.median(summary.mad_us for summary in summaries),
        "span_us": statistics.median(spans) if spans else None,
        "repeats": sum(summary.repeats for summary in summaries),
        "stable": all(judged) if judged else None,
        "timer": results[0].timer,
    }


def _kernels(gathered: Gathered) -> list[dict[str, Any]]:
    """The kernels of each row's first visit that saw any, in launch order, with the launched blocks.

    What was counted of the same launch, by its place and name, adds the columns that it lacks.
    """
    return [
        {
            **_counted(gathered.counters.get(key, ())[index : index + 1], demangled(kernel.kernel_name)),
            **_settings(key),
            "kernel_index": index,
            **asdict(kernel),
            "kernel_name": demangled(kernel.kernel_name),
            "blocks": kernel.grid_x * kernel.grid_y * kernel.grid_z,
        }
        for key, visits in gathered.visits.items()
        for index, kernel in enumerate(next((v.result.kernels for v in visits.values() if v.result.kernels), ()))
    ]


def _counted(counters: Sequence[Mapping[str, Any]], kernel_name: str) -> dict[str, Any]:
    """A counted kernel's numbers; none where there is no such kernel, or another one ran under the profiler."""
    if not counters or counters[0]["kernel_name"] != kernel_name:
        return {}
    numbers = dict(counters[0])
    return {"counted_time_us": numbers.pop("time_us", math.nan), **numbers}


def _anchors(gathered: Gathered) -> list[dict[str, Any]]:
    """Per row with several ok visits: its problem, the visits' spread and their trend, in the order of time."""
    entries: list[dict[str, Any]] = []
    for key, visits in gathered.visits.items():
        ok = [visit for visit in visits.values() if visit.result.status == "ok"]
        ok.sort(key=lambda visit: visit.at_s)
        if len(ok) > 1:
            medians = [summarise(visit.result.times_us).median_us for visit in ok]
            named = {"gpu": key.device[0], "problem": key.problem, "algorithm": key.algorithm}
            entries.append({**named, "visits": len(ok), "drift": drift(medians), "trend": trend(medians)})
    return entries


def _latest(
    runs: Sequence[Log], kind: str, rows_of: Callable[[tuple[str, str, str], Mapping[str, Any]], Any]
) -> list[Any]:
    """``rows_of(device, record)`` of every record of ``kind``; of one problem on one device, the last one's."""
    rows: dict[tuple[str, ...], Any] = {}
    for path, header, records in runs:
        device = _device(header)
        with log.undamaged(path):
            for record in records:
                if record["kind"] == kind:
                    rows[*device, record["problem"]] = rows_of(device, record)
    return list(rows.values())


def _rankings(runs: Sequence[Log], metadata: dict[str, Any]) -> Dataset:
    """The rankings of all logs; of a problem ranked twice for one GPU and version, the later file's counts."""
    rankings = _latest(runs, "problem", _ranked)
    rows = [row for ranking in rankings for row in ranking]
    metadata["unranked_problems"] = sum(not ranking for ranking in rankings)
    return Dataset(_table(rows, "dataset"), "listed", metadata=metadata)


def _ranked(device: tuple[str, str, str], record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """An engine's first place counts; one that cuDNN ranks but refuses to finalise has no row."""
    ok = [entry for entry in record["heuristic"] if entry["status"] == "ok"]
    first = {entry["algorithm"]: entry for entry in reversed(ok)}
    names = dict.fromkeys(entry["algorithm"] for entry in ok)
    return [
        {
            **_settings(Key(device, record["problem"], name)),
            "heuristic_rank": rank,
            "heuristic_algorithm": ok[0]["algorithm"],
            "workspace_bytes": first[name].get("workspace_bytes"),
            "deterministic": first[name].get("deterministic"),
            "networks": ",".join(record["networks"]) or None,
            "origin": record["origin"],
        }
        for rank, name in enumerate(names, 1)
    ]


def _operators(runs: Sequence[Log], metadata: dict[str, Any]) -> Dataset:
    """A row per operator problem: family, operator, its sizes (missing where it has no such), times in µs.

    ``kernels`` counts the launches, ``kernel_name`` is the longest one's; of two logs that hold a problem of one device
    the later one counts.
    """
    return Dataset(pd.DataFrame(_latest(runs, "operator", _operator_row)), metadata=metadata)


def _operator_row(device: tuple[str, str, str], record: Mapping[str, Any]) -> dict[str, Any]:
    operator = parse(record["problem"])
    result = Measurement.from_dict(record["result"])
    longest = max(result.kernels, key=lambda kernel: kernel.time_us, default=None)
    sizes = operator.named
    if "window" in sizes:  # windows are square here, and never padded
        sizes |= {"window_w": sizes["window"], "stride_w": sizes["stride"], "pad": 0, "pad_w": 0}
    return {
        **dict(zip(DEVICE_COLUMNS, device, strict=True)),
        "family": FAMILY_OF_KIND[operator.kind],
        "operator": operator.kind,
        "dtype": "fp32",
        "math": "fma",
        "variant": "",
        **sizes,
        "algorithm": "default",
        "status": result.status,
        "reason": result.reason or None,
        **_times([result] if result.status == "ok" else []),
        "sm_clock_mhz": record["conditions"].get("sm_clock_mhz"),
        "kernels": len(result.kernels),
        "kernel_name": demangled(longest.kernel_name) if longest else None,
    }
