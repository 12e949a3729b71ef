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
from typing import Any

import pandas as pd

from surrogate.collect import log
from surrogate.collect.device import SLOW_CLOCK, Choice, Measurement, demangled, summarise, throttled
from surrogate.collect.log import Entry, Header, conv_of, key_without_visit
from surrogate.collect.operators import parse
from surrogate.dataset.columns import columns
from surrogate.dataset.store import Dataset
from surrogate.features.errors import InputError
from surrogate.features.families import FAMILY_OF_KIND

DEVICE_COLUMNS = ("gpu", "library", "library_version")


ROW = (*DEVICE_COLUMNS, "problem", "algorithm")
"""What a row is named by: device, problem with settings, algorithm."""


@dataclass(slots=True)
class ProblemNotes:
    """What is known of one problem on one device beside its measurements."""

    origin: str = ""
    networks: dict[str, None] = field(default_factory=dict)
    heuristic: str | None = None
    find_us: dict[str, list[float]] = field(default_factory=dict)


@dataclass(slots=True)
class Gathered:
    """What all logs hold, in the order it was first seen; a device's name is (gpu, library, version)."""

    visits: list[dict[str, Any]] = field(default_factory=list)
    """`ROW`, ``run``, ``visit`` (the problem with the number of its visit), ``at_s``, and what was measured."""
    notes: dict[tuple[str, ...], ProblemNotes] = field(default_factory=dict)
    """Device and problem → what else is known of it."""
    conditions: dict[tuple[str, str], Mapping[str, float]] = field(default_factory=dict)
    """Run and visit → clocks sampled after it; a problem that was cut before has none."""
    counters: dict[tuple[str, ...], list[dict[str, Any]]] = field(default_factory=dict)
    """Row → its counted kernels in launch order; of a row counted twice the last."""

    def take(self, header: Header, records: Iterable[Entry]) -> None:
        """Take one run's records.

        Raises `InputError`, or what the damage leads to, for a record that names no problem or holds no measurement.
        """
        device = _device(header)
        # copies of a run's log, however short, are the same run
        run = f"{header.created_s} {header.plan_digest} {header.shard} {device}"
        for record in records:
            kind = record["kind"]
            visit = record["problem"]
            key = key_without_visit(visit)
            math_type = conv_of(key).math
            problem = self.notes.setdefault((*device, key), ProblemNotes())
            if kind == "problem":
                ranking = [entry["algorithm"] for entry in record["heuristic"] if entry["status"] == "ok"]
                problem.origin = problem.origin or record["origin"]
                problem.networks.update(dict.fromkeys(record["networks"]))
                problem.heuristic = problem.heuristic or next(iter(ranking), None)
            elif kind == "measure" and _lost(record):
                continue
            elif kind == "measure":
                row = dict(zip(ROW, (*device, key, record["algorithm"]), strict=True))
                named = {**row, "run": run, "visit": visit, "at_s": record.get("at_s", 0.0)}
                self.visits.append({**named, **_measurement(record["result"])})
            elif kind == "counters":
                self.counters[*device, key, record["algorithm"]] = record["kernels"]
            elif (run, visit) not in self.conditions:
                self.conditions[run, visit] = record["conditions"]
                for choice in Choice.all_from(record["find"]):
                    if choice.time_us is not None and choice.math in (None, math_type):
                        problem.find_us.setdefault(choice.algorithm, []).append(choice.time_us)


def _lost(record: Entry) -> bool:
    """True for a measurement that lost the device, and says nothing of what it was to measure."""
    return Measurement.from_dict(record["result"]).lost


def _measurement(values: Mapping[str, object]) -> dict[str, Any]:
    """The columns of one measurement; one with a time that is no time (0, not finite) is ``failed``."""
    result = Measurement.from_dict(values)
    wrong = [time for time in (*result.times_us, *result.spans_us) if not 0 < time < math.inf]
    if wrong:
        result = Measurement("failed", f"a repeat of {wrong[0]:g} µs")
    return {
        "status": result.status,
        "reason": result.reason or None,
        "workspace_bytes": result.workspace_bytes,
        "deterministic": result.deterministic,
        **summarise(result.times_us),
        "span_us": statistics.median(result.spans_us) if result.spans_us else None,
        "timer": result.timer or None,
        "sm_clock_mhz": result.sm_clock_mhz,
        "throttle_reasons": result.throttle_reasons,
        "kernels": result.kernels,
    }


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


def _kind(header: Header, records: Sequence[Entry]) -> str:
    if header.protocol.get("heuristic_only"):
        return "rankings without times"
    return "operators" if any(record["kind"] == "operator" for record in records) else "measurements"


Log = tuple[Path, Header, Sequence[Entry]]
"""Path, header, records."""


def _device(header: Header) -> tuple[str, str, str]:
    return header.device.gpu, header.device.library, header.device.library_version


def _table(frame: pd.DataFrame, table: str) -> pd.DataFrame:
    """``frame`` with the declared columns of ``table`` in their order and type; text or None where it is text."""
    kinds = {column.name: column.kind for column in columns(table) if column.name in frame}
    types: Any = {name: kind for name, kind in kinds.items() if kind != "text"}
    return frame[list(kinds)].astype(types)


def _measured(runs: Sequence[Log], metadata: dict[str, object]) -> Dataset:
    gathered = Gathered()
    for path, header, records in runs:
        with log.undamaged(path):
            gathered.take(header, records)
    if not gathered.visits:
        return Dataset(pd.DataFrame(), metadata=metadata)
    visits = _visits(gathered)
    dropped = len(gathered.visits) - len(visits)
    metadata |= {"anchors": _anchors(visits), "duplicates_dropped": dropped}
    launches = _kernels(visits, gathered.counters)
    if gathered.counters:
        metadata["counted_kernels"] = sum(map(len, gathered.counters.values()))
        metadata["counted_kernels_joined"] = sum("counted_time_us" in launch for launch in launches)
    frame = _table(_rows(visits, gathered.notes), "dataset")
    return Dataset(frame, metadata=metadata, kernels=_table(pd.DataFrame(launches), "kernels"))


def _visits(gathered: Gathered) -> pd.DataFrame:
    """Every visit once, with its clock: the one under load, or else the one sampled after its problem."""
    for visit in gathered.visits:
        if visit["sm_clock_mhz"] is None:
            after = gathered.conditions.get((visit["run"], visit["visit"]), {})
            visit |= {name: after.get(name) for name in ("sm_clock_mhz", "throttle_reasons")}
    visits = pd.DataFrame(gathered.visits).drop_duplicates(["run", "visit", "algorithm"])
    clocks = pd.to_numeric(visits["sm_clock_mhz"])
    clocks = clocks.where(clocks > 0)
    usual = clocks.groupby(visits["run"]).transform("median")
    held = visits["throttle_reasons"].map(throttled)
    return visits.assign(sm_clock_mhz=clocks, slow_clock=clocks < SLOW_CLOCK * usual, throttled=held)


def _rows(visits: pd.DataFrame, notes: Mapping[tuple[str, ...], ProblemNotes]) -> pd.DataFrame:
    """A row per `ROW`: medians over its visits that are ok; what else is said is the first one's."""
    row = list(ROW)
    ok = visits[visits["status"] == "ok"]
    order = pd.MultiIndex.from_frame(visits[row].drop_duplicates())
    first = pd.concat([ok, visits]).drop_duplicates(row).set_index(row)
    first_values = first[["status", "reason", "workspace_bytes", "deterministic", "timer"]].reindex(order)
    over: Any = ok.groupby(row)
    median = over[["time_us", "time_us_mad", "span_us"]].median()
    extremes = {"time_us_min": over["time_us_min"].min(), "time_us_max": over["time_us_max"].max()}
    stable = ok.dropna(subset="stable").groupby(row)["stable"].all()
    ever: Any = visits.groupby(row)
    clocks = ever.agg({"sm_clock_mhz": "median", "slow_clock": "any", "throttled": "any"})
    table = first_values.join([median, clocks]).assign(**extremes, stable=stable, repeats=over["repeats"].sum())
    table["repeats"] = table["repeats"].fillna(0)
    described = []
    for *device, problem, algorithm in order:
        known = notes[*device, problem]
        find_us = known.find_us.get(algorithm)
        find_time_us = statistics.median(find_us) if find_us else None
        described.append(
            {
                **_settings((*device, problem, algorithm)),
                "find_time_us": find_time_us,
                "origin": known.origin,
                "heuristic_algorithm": known.heuristic,
                "networks": ",".join(known.networks) or None,
            }
        )
    return pd.DataFrame(described).join(table.reset_index(drop=True))


def _settings(row: tuple[str, ...]) -> dict[str, object]:
    """What every row begins with."""
    *device, problem, algorithm = row
    return {**dict(zip(DEVICE_COLUMNS, device, strict=True)), **conv_of(problem).to_dict(), "algorithm": algorithm}


def _kernels(visits: pd.DataFrame, counters: Mapping[tuple[str, ...], list[dict[str, Any]]]) -> list[dict[str, object]]:
    """The kernels of each row's first visit that saw any, in launch order, with the launched blocks.

    What was counted of the same launch, by its place and name, adds the columns that it lacks.
    """
    launches = []
    for *row, kernels in visits[visits["kernels"].map(bool)].drop_duplicates(list(ROW))[[*ROW, "kernels"]].to_numpy():
        counted = counters.get(tuple(row), ())
        for index, kernel in enumerate(kernels):
            launch = {**asdict(kernel), "kernel_name": demangled(kernel.kernel_name)}
            launch["blocks"] = kernel.grid_x * kernel.grid_y * kernel.grid_z
            # another kernel may have run under the profiler
            if index < len(counted) and counted[index]["kernel_name"] == launch["kernel_name"]:
                launch = {**counted[index], "counted_time_us": counted[index].get("time_us", math.nan), **launch}
            launches.append({**_settings(tuple(row)), "kernel_index": index, **launch})
    return launches


def _anchors(visits: pd.DataFrame) -> list[dict[str, object]]:
    """Per row with several ok visits: its problem, the visits' spread and their trend, in the order of time.

    ``drift``: slowest / fastest − 1; ``trend``: last / first − 1.
    """
    ok = visits[visits["status"] == "ok"]
    repeated: Any = ok[ok.duplicated(list(ROW), keep=False)].sort_values("at_s", kind="stable").groupby(list(ROW))
    return [
        {
            "gpu": row[0],
            "problem": row[-2],
            "algorithm": row[-1],
            "visits": len(times),
            "drift": float(times.max() / times.min() - 1.0),
            "trend": float(times.iloc[-1] / times.iloc[0] - 1.0),
        }
        for row, times in repeated["time_us"]
    ]


def _latest(runs: Sequence[Log], kind: str, rows_of: Callable[[tuple[str, str, str], Entry], Any]) -> list[Any]:
    """``rows_of(device, record)`` of every record of ``kind``; of one problem on one device, the last one's."""
    rows: dict[tuple[str, ...], Any] = {}
    for path, header, records in runs:
        device = _device(header)
        with log.undamaged(path):
            for record in records:
                if record["kind"] == kind and not (kind == "operator" and _lost(record)):
                    rows[*device, record["problem"]] = rows_of(device, record)
    return list(rows.values())


def _rankings(runs: Sequence[Log], metadata: dict[str, object]) -> Dataset:
    """The rankings of all logs; of a problem ranked twice for one GPU and version, the later file's counts."""
    rankings = _latest(runs, "problem", _ranked)
    rows = [row for ranking in rankings for row in ranking]
    metadata["unranked_problems"] = sum(not ranking for ranking in rankings)
    return Dataset(_table(pd.DataFrame(rows), "dataset"), "listed", metadata=metadata)


def _ranked(device: tuple[str, str, str], record: Entry) -> list[dict[str, object]]:
    """An engine's first place counts; one that cuDNN ranks but refuses to finalise has no row."""
    ok = [entry for entry in record["heuristic"] if entry["status"] == "ok"]
    first = {entry["algorithm"]: entry for entry in reversed(ok)}
    names = dict.fromkeys(entry["algorithm"] for entry in ok)
    return [
        {
            **_settings((*device, record["problem"], name)),
            "heuristic_rank": rank,
            "heuristic_algorithm": ok[0]["algorithm"],
            "workspace_bytes": first[name].get("workspace_bytes"),
            "deterministic": first[name].get("deterministic"),
            "networks": ",".join(record["networks"]) or None,
            "origin": record["origin"],
        }
        for rank, name in enumerate(names, 1)
    ]


def _operators(runs: Sequence[Log], metadata: dict[str, object]) -> Dataset:
    """A row per operator problem: family, operator, its sizes (missing where it has no such), times in µs.

    ``kernels`` counts the launches, ``kernel_name`` is the longest one's; of two logs that hold a problem of one device
    the later one counts.
    """
    return Dataset(pd.DataFrame(_latest(runs, "operator", _operator_row)), metadata=metadata)


def _operator_row(device: tuple[str, str, str], record: Entry) -> dict[str, object]:
    operator = parse(record["problem"])
    values = _measurement(record["result"])
    kernels = values.pop("kernels")
    held_down = throttled(values.pop("throttle_reasons"))
    longest = max(kernels, key=lambda kernel: kernel.time_us, default=None)
    return {
        **dict(zip(DEVICE_COLUMNS, device, strict=True)),
        "family": FAMILY_OF_KIND[operator.kind],
        "operator": operator.kind,
        **{name: getattr(operator, name) for name in operator.setting_names()},
        **operator.sizes,
        "algorithm": "default",
        **values,
        "sm_clock_mhz": values["sm_clock_mhz"] or record["conditions"].get("sm_clock_mhz"),
        "throttled": held_down,
        "kernels": len(kernels),
        "kernel_name": demangled(longest.kernel_name) if longest else None,
    }
