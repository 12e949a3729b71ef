"""Runs → one dataset: a row per (device, settings, problem, algorithm), and a table of kernels keyed alike.

Shards of a plan and runs of other devices go together. A problem measured several times (anchors, or two
runs) becomes one row: its time is the median of the visits' medians, and how far the visits drifted is told
in the metadata.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from features.errors import InputError
from features.problem import SIZE_COLUMNS
from surrogate.collect import log
from surrogate.collect.clocks import throttles
from surrogate.collect.device import Measurement, choices
from surrogate.collect.protocol import Summary, drift, slow_clocks, summarise, trend
from surrogate.collect.records import conv_of, key_without_visit

SETTING_COLUMNS = ("gpu", "library", "library_version", "direction", "dtype", "math", "layout")
NUMBER_COLUMNS = (
    "time_us",
    "time_us_min",
    "time_us_max",
    "time_us_mad",
    "span_us",
    "workspace_bytes",
    "find_time_us",
    "sm_clock_mhz",
)
COLUMNS = (
    *SETTING_COLUMNS,
    *SIZE_COLUMNS,
    "algorithm",
    "status",
    "time_us",
    "time_us_min",
    "time_us_max",
    "time_us_mad",
    "span_us",
    "repeats",
    "stable",
    "timer",
    "workspace_bytes",
    "find_time_us",
    "heuristic_algorithm",
    "deterministic",
    "sm_clock_mhz",
    "slow_clock",
    "throttled",
    "networks",
    "origin",
    "reason",
)
CANDIDATES = "all"
"""Every algorithm of a problem is tried; one without a row is unmeasured."""


@dataclass(frozen=True)
class Merged:
    """A dataset ready to be stored: rows, kernels (empty where none were seen), JSON metadata, kind of candidates."""

    rows: pd.DataFrame
    kernels: pd.DataFrame
    metadata: dict[str, Any]
    candidates: str = CANDIDATES


class _Key(NamedTuple):
    """Names one row: device, problem with settings, algorithm."""

    device: tuple[str, str, str]
    problem: str
    algorithm: str


@dataclass(slots=True)
class _Problem:
    """What is known of one problem on one device beside its measurements."""

    origin: str = ""
    networks: dict[str, None] = field(default_factory=dict)
    heuristic: str | None = None
    find_us: dict[str, list[float]] = field(default_factory=dict)


@dataclass(slots=True)
class _Visit:
    """One measurement, with the SM clock sampled after its problem (None where unknown)."""

    result: Measurement
    at_s: float
    clock_mhz: float | None = None
    slow_clock: bool = False
    throttled: bool = False


@dataclass(slots=True)
class _Gathered:
    visits: dict[_Key, list[_Visit]] = field(default_factory=dict)
    problems: dict[tuple[tuple[str, str, str], str], _Problem] = field(default_factory=dict)
    seen: set[tuple[str, ...]] = field(default_factory=set)
    duplicates: int = 0


def merge_runs(paths: Sequence[str | Path]) -> Merged:
    """The dataset that the runs at ``paths`` hold together.

    Raises `InputError` for a file that is no run, or where no run holds a measurement.
    """
    gathered = _Gathered()
    runs: list[dict[str, Any]] = []
    for path in paths:
        contents = log.read(path)
        if contents.header is not None:
            runs.append(contents.header.to_dict())
            _gather(contents.header, contents.records, gathered)
    if not gathered.visits:
        raise InputError(
            f"{', '.join(map(str, paths)) or 'nothing'}: no measurement to merge; collect some first"
        )
    rows = pd.DataFrame([_row(key, gathered) for key in gathered.visits], columns=pd.Index(COLUMNS))
    metadata = {"runs": runs, "anchors": _anchors(gathered), "duplicates_dropped": gathered.duplicates}
    return Merged(_typed(rows), _kernels(gathered), metadata)


def _gather(header: log.Header, records: Iterable[Mapping[str, Any]], gathered: _Gathered) -> None:
    """Take one run's records; the same visit of the same run taken before is a duplicate."""
    device = (header.device.gpu, header.device.library, header.device.library_version)
    run = (str(header.created_s), header.plan_digest, *map(str, header.shard), *device)
    by_visit: dict[str, list[_Visit]] = {}
    clocks: list[tuple[list[_Visit], Mapping[str, float]]] = []
    for record in records:
        visit_key = record["problem"]
        key = key_without_visit(visit_key)
        problem = gathered.problems.setdefault((device, key), _Problem())
        name = (*run, record["kind"], visit_key, record.get("algorithm", ""))
        if name in gathered.seen:
            gathered.duplicates += record["kind"] == "measure"
            continue
        gathered.seen.add(name)
        if record["kind"] == "problem":
            _note_problem(problem, record)
        elif record["kind"] == "measure":
            visit = _Visit(Measurement.from_dict(record["result"]), record.get("at_s", 0.0))
            gathered.visits.setdefault(_Key(device, key, record["algorithm"]), []).append(visit)
            by_visit.setdefault(visit_key, []).append(visit)
        elif record["kind"] == "done":
            for choice in choices(record["find"]):
                if choice.time_us is not None and choice.math in (None, conv_of(key).math):
                    problem.find_us.setdefault(choice.algorithm, []).append(choice.time_us)
            clocks.append((by_visit.get(visit_key, []), record["conditions"]))
    _note_clocks(clocks)


def _note_problem(problem: _Problem, record: Mapping[str, Any]) -> None:
    problem.origin = problem.origin or record["origin"]
    problem.networks.update(dict.fromkeys(record["networks"]))
    ranking = [choice for choice in choices(record["heuristic"]) if choice.status == "ok"]
    if ranking and problem.heuristic is None:
        problem.heuristic = ranking[0].algorithm


def _note_clocks(clocks: Sequence[tuple[list[_Visit], Mapping[str, float]]]) -> None:
    """Flag the visits of one run whose clock was low; a problem cut before its clock was sampled has none."""
    flags = slow_clocks([conditions.get("sm_clock_mhz") for _, conditions in clocks])
    for (visits, conditions), slow in zip(clocks, flags, strict=True):
        for visit in visits:
            visit.clock_mhz, visit.slow_clock = conditions.get("sm_clock_mhz"), slow
            visit.throttled = bool(throttles(conditions.get("throttle_reasons")))


def _row(key: _Key, gathered: _Gathered) -> dict[str, Any]:
    conv = conv_of(key.problem)
    problem = gathered.problems[key.device, key.problem]
    visits = gathered.visits[key]
    ok = [visit for visit in visits if visit.result.status == "ok"]
    shown = (ok or visits)[0].result
    row: dict[str, Any] = {
        **dict(zip(SETTING_COLUMNS[:3], key.device, strict=True)),
        **conv.to_dict(),
        "algorithm": key.algorithm,
        "status": shown.status,
        "repeats": 0,
        "workspace_bytes": shown.workspace_bytes,
        "deterministic": shown.deterministic,
        "heuristic_algorithm": problem.heuristic,
        "networks": ",".join(problem.networks) or None,
        "origin": problem.origin,
        "reason": shown.reason or None,
        "slow_clock": any(visit.slow_clock for visit in visits),
        "throttled": any(visit.throttled for visit in visits),
    }
    found = problem.find_us.get(key.algorithm)
    if found:
        row["find_time_us"] = statistics.median(found)
    known_clocks = [visit.clock_mhz for visit in visits if visit.clock_mhz]
    if known_clocks:
        row["sm_clock_mhz"] = statistics.median(known_clocks)
    return row | (_times(ok) if ok else {})


def _times(visits: Sequence[_Visit]) -> dict[str, Any]:
    """The time columns of visits that are ok."""
    summaries = [summarise(visit.result.times_us) for visit in visits]
    judged = [summary.stable for summary in summaries if summary.judgeable]
    return {
        "time_us": statistics.median(summary.median_us for summary in summaries),
        "time_us_min": min(summary.min_us for summary in summaries),
        "time_us_max": max(summary.max_us for summary in summaries),
        "time_us_mad": statistics.median(summary.mad_us for summary in summaries),
        "span_us": statistics.median(statistics.median(visit.result.spans_us) for visit in visits),
        "repeats": sum(summary.repeats for summary in summaries),
        "stable": all(judged) if judged else None,
        "timer": visits[0].result.timer,
    }


def _typed(rows: pd.DataFrame) -> pd.DataFrame:
    """Sizes and repeats int64, measured numbers float64, verdicts nullable booleans, the rest text or None."""
    types = {
        **dict.fromkeys((*SIZE_COLUMNS, "repeats"), "int64"),
        **dict.fromkeys(NUMBER_COLUMNS, "float64"),
        **dict.fromkeys(("stable", "deterministic", "slow_clock", "throttled"), "boolean"),
    }
    return rows.astype(types)  # pyright: ignore[reportArgumentType, reportCallIssue]


def _kernels(gathered: _Gathered) -> pd.DataFrame:
    """The kernels of each row's first visit that saw any, in launch order, with the launched blocks."""
    found: list[dict[str, Any]] = []
    for key, visits in gathered.visits.items():
        kernels = next((visit.result.kernels for visit in visits if visit.result.kernels), ())
        settings = {
            **dict(zip(SETTING_COLUMNS[:3], key.device, strict=True)),
            **conv_of(key.problem).to_dict(),
        }
        for index, kernel in enumerate(kernels):
            blocks = kernel.grid_x * kernel.grid_y * kernel.grid_z
            found.append(
                {
                    **settings,
                    "algorithm": key.algorithm,
                    "kernel_index": index,
                    **asdict(kernel),
                    "blocks": blocks,
                }
            )
    leading = [*SETTING_COLUMNS, *SIZE_COLUMNS, "algorithm", "kernel_index"]
    frame = pd.DataFrame(found)
    return frame[[*leading, *(name for name in frame.columns if name not in leading)]] if found else frame


def _anchors(gathered: _Gathered) -> list[dict[str, Any]]:
    """Per row with several ok visits: its problem, the visits' spread and their trend, in the order of time."""
    entries: list[dict[str, Any]] = []
    for key, visits in gathered.visits.items():
        ok = sorted((visit for visit in visits if visit.result.status == "ok"), key=lambda visit: visit.at_s)
        if len(ok) < 2:
            continue
        medians = [_median(visit) for visit in ok]
        entries.append(
            {
                "gpu": key.device[0],
                "problem": key.problem,
                "algorithm": key.algorithm,
                "visits": len(ok),
                "drift": drift(medians),
                "trend": trend(medians),
            }
        )
    return entries


def _median(visit: _Visit) -> float:
    summary: Summary = summarise(visit.result.times_us)
    return summary.median_us
