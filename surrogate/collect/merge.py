"""Merge runs into a dataset: a row per (device, settings, problem, algorithm), and a kernel table by the same key.

Shards of a plan and runs of several devices can be merged. A problem that was measured several times (anchors, or two
runs) becomes one row. Its time is the median of the visits' medians, and the metadata states the drift of the visits.
Logs of engine configurations become another table, with ``listed`` candidates. Logs of
``--heuristic-only`` become a table of such configurations, without status and time. Logs of operators become a table of
their own.
"""

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from surrogate.collect import log
from surrogate.collect.device import SLOW_CLOCK, HeuristicEntry, Measurement, demangled, summarise, throttled
from surrogate.collect.log import Header, LogRecord, conv_of, key_without_visit
from surrogate.collect.operators import parse_operator
from surrogate.dataset.columns import columns
from surrogate.dataset.store import Dataset
from surrogate.features import CUDNN_GRAPH, InputError
from surrogate.features.families import FAMILY_OF_KIND
from surrogate.formats.foreign_file import readable

DEVICE_COLUMNS = ("gpu", "library", "library_version")


KEY = (*DEVICE_COLUMNS, "problem", "algorithm")
"""The key of a row: device, problem with settings, algorithm."""
Records = Mapping[str, Sequence[dict[str, Any]]]
"""Kind → records of all logs in order. Each has the columns of its device, ``run``, ``visit`` (the problem with the
number of its visit) and ``problem``; ``values`` are the measured columns."""


def _records(runs: Sequence["Log"]) -> Records:
    """Return all logs' records, without the measurements that lost the device.

    Raises `InputError` for a record that names no problem or holds no measurement.
    """
    found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in log.KINDS}
    for path, header, records in runs:
        device = {name: getattr(header.device, name) for name in DEVICE_COLUMNS}
        # Copies of a run's log, complete or cut, count as the same run.
        run = f"{header.created_s} {header.plan_digest} {header.shard} {tuple(device.values())}"
        with readable(path, log.DAMAGED, keep_input_errors=False):
            for record in records:
                kind, visit = record["kind"], record["problem"]
                row = {**record, **device, "run": run, "visit": visit, "problem": key_without_visit(visit)}
                math_type = None if kind == "operator" else conv_of(visit).math
                if kind in ("measure", "operator"):
                    result = Measurement.from_dict(record["result"])
                    if result.lost:
                        continue
                    row["values"] = _measurement(result)
                elif kind == "problem":
                    row["ranking"] = [entry for entry in record["heuristic"] if entry["status"] == "ok"]
                    names = dict.fromkeys(entry["algorithm"] for entry in row["ranking"])
                    row["rank"] = {name: rank for rank, name in enumerate(names, 1)}
                    row["first"] = next(iter(names), None)
                elif kind == "done":
                    timed = (entry for entry in HeuristicEntry.all_from(record["find"]) if entry.time_us is not None)
                    row["found"] = [entry for entry in timed if entry.math in (None, math_type)]
                found[kind].append(row)
    return found


def _values(row: Mapping[str, Any], names: Sequence[str]) -> tuple[Any, ...]:
    return tuple(row[name] for name in names)


def _measurement(result: Measurement) -> dict[str, Any]:
    """Return the columns of one measurement. Its status is ``failed`` if a time is 0 or not finite."""
    wrong = [time for time in (*result.times_us, *result.spans_us) if not 0 < time < math.inf]
    if wrong:
        result = Measurement("failed", f"a repeat of {wrong[0]:g} µs")
    names = ("status", "workspace_bytes", "build_ms", "deterministic", "sm_clock_mhz", "throttle_reasons", "kernels")
    return {
        **{name: getattr(result, name) for name in names},
        **summarise(result.times_us),
        "reason": result.reason or None,
        "span_us": statistics.median(result.spans_us) if result.spans_us else None,
        "timer": result.timer or None,
    }


def merge_runs(paths: Sequence[str | Path]) -> Dataset:
    """Return the dataset of the logs at ``paths``: measured runs, rankings or operators.

    Its kernel table is empty if no kernels were recorded. ``candidates`` is ``all`` for runs that measured algorithms:
    every algorithm of a problem is tried, so an algorithm without a row is unmeasured.

    Raises `InputError` for a file that is no log, for logs of several kinds, and if no log has a measurement.
    """
    contents = [(Path(path), log.read_log(path)) for path in paths]
    logs = [(path, each.header, each.records) for path, each in contents if each.header is not None]
    kinds = {_kind(header, records): path for path, header, records in logs}
    if len(kinds) > 1:
        described = " and ".join(f"{path} holds {kind}" for kind, path in kinds.items())
        raise InputError(f"{described}; merge each kind into its own table")
    merge = {"rankings without times": _rankings, "operators": _operators}.get(next(iter(kinds), ""), _measured)
    files = ", ".join(map(str, paths)) or "nothing"
    with readable(files, log.DAMAGED):
        merged = merge(_records(logs), {"runs": [header.to_dict() for _, header, _ in logs]})
    if merged.frame.empty:
        raise InputError(f"{files}: no measurement or ranking to merge; collect some first")
    return merged


def _kind(header: Header, records: Sequence[LogRecord]) -> str:
    if header.protocol.get("heuristic_only"):
        return "rankings without times"
    if header.device.library == CUDNN_GRAPH:
        return "engine configurations"
    return "operators" if any(record["kind"] == "operator" for record in records) else "measurements"


Log = tuple[Path, Header, Sequence[LogRecord]]
"""A log's path, header and records."""


def _table(frame: pd.DataFrame, table: str) -> pd.DataFrame:
    """Return ``frame`` with the declared columns of ``table`` in their order and types. Text cells are text or None."""
    kinds = {column.name: column.kind for column in columns(table) if column.name in frame}
    types: Any = {name: kind for name, kind in kinds.items() if kind != "text"}
    types |= {name: "Int64" for name, kind in kinds.items() if kind == "int64" and frame[name].isna().any()}
    return frame[list(kinds)].astype(types)


def _measured(found: Records, metadata: dict[str, object]) -> Dataset:
    if not found["measure"]:
        return Dataset(pd.DataFrame(), metadata=metadata)
    # The first record of a run's log and its copies counts.
    done = {(row["run"], row["visit"]): row for row in reversed(found["done"])}
    visits = _visits(found, done)
    metadata |= {"anchors": _anchors(visits), "duplicates_dropped": len(found["measure"]) - len(visits)}
    # The last record counts if a row has counters twice.
    counters = {_values(row, KEY): row["kernels"] for row in found["counters"]}
    launches = _kernels(visits, counters)
    if counters:
        metadata["counted_kernels"] = sum(map(len, counters.values()))
        metadata["counted_kernels_joined"] = sum("counted_time_us" in launch for launch in launches)
    rows = _rows(visits, found, done)
    candidates = "listed" if CUDNN_GRAPH in set(rows["library"]) else "all"
    frame = _table(rows if candidates == "listed" else rows.drop(columns="build_ms"), "dataset")
    return Dataset(frame, candidates, metadata=metadata, kernels=_table(pd.DataFrame(launches), "kernels"))


def _visits(found: Records, done: Mapping[tuple[str, ...], Mapping[str, Any]]) -> pd.DataFrame:
    """Return every visit once, with its clock: under load, or else sampled after its problem."""
    rows = []
    for row in found["measure"]:
        values = row["values"]
        if values["sm_clock_mhz"] is None:
            after = done.get((row["run"], row["visit"]), {"conditions": {}})["conditions"]
            values |= {name: after.get(name) for name in ("sm_clock_mhz", "throttle_reasons")}
        rows.append({**{name: row[name] for name in (*KEY, "run", "visit")}, "at_s": row.get("at_s", 0.0), **values})
    visits = pd.DataFrame(rows).drop_duplicates(["run", "visit", "algorithm"])
    clocks = pd.to_numeric(visits["sm_clock_mhz"])
    clocks = clocks.where(clocks > 0)
    usual = clocks.groupby(visits["run"]).transform("median")
    is_throttled = visits["throttle_reasons"].map(throttled)
    return visits.assign(sm_clock_mhz=clocks, slow_clock=clocks < SLOW_CLOCK * usual, throttled=is_throttled)


def _rows(visits: pd.DataFrame, found: Records, done: Mapping[tuple[str, ...], Mapping[str, Any]]) -> pd.DataFrame:
    """Return a row per `KEY`: medians over its ok visits. Other columns come from the first ok visit, or the first."""
    row = list(KEY)
    ok = visits[visits["status"] == "ok"]
    order = pd.MultiIndex.from_frame(visits[row].drop_duplicates())
    first = pd.concat([ok, visits]).drop_duplicates(row).set_index(row)
    first_values = first[["status", "reason", "workspace_bytes", "build_ms", "deterministic", "timer"]].reindex(order)
    ok_visits: Any = ok.groupby(row)
    median = ok_visits[["time_us", "time_us_mad", "span_us"]].median()
    extremes = {"time_us_min": ok_visits["time_us_min"].min(), "time_us_max": ok_visits["time_us_max"].max()}
    stable = ok.dropna(subset="stable").groupby(row)["stable"].all()
    all_visits: Any = visits.groupby(row)
    clocks = all_visits.agg({"sm_clock_mhz": "median", "slow_clock": "any", "throttled": "any"})
    table = first_values.join([median, clocks]).assign(**extremes, stable=stable, repeats=ok_visits["repeats"].sum())
    table["repeats"] = table["repeats"].fillna(0)
    times_us: dict[tuple[str, ...], list[float]] = {}
    for after in done.values():
        for entry in after["found"]:
            times_us.setdefault((*_values(after, KEY[:-1]), entry.algorithm), []).append(entry.time_us)
    planned: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for problem in found["problem"]:
        planned.setdefault(_values(problem, KEY[:-1]), []).append(problem)
    described = [
        {
            **_first_columns(key),
            "find_time_us": statistics.median(times_us[key]) if key in times_us else None,
            **_origin(planned.get(key[:-1], ())),
            **_configuration(key[-1], planned.get(key[:-1], ())),
        }
        for key in order
    ]
    return pd.DataFrame(described).join(table.reset_index(drop=True))


def _origin(planned: Sequence[Mapping[str, Any]]) -> dict[str, str | None]:
    """Return the first origin, the first ranking's best and all networks of one problem's ``problem`` records."""
    return {
        "origin": next((problem["origin"] for problem in planned if problem["origin"]), ""),
        "heuristic_algorithm": next((problem["first"] for problem in planned if problem["first"]), None),
        "networks": ",".join(dict.fromkeys(name for problem in planned for name in problem["networks"])) or None,
    }


def _configuration(name: str, planned: Sequence[Mapping[str, Any]]) -> dict[str, object]:
    """Return the columns of an engine configuration, ``eng62_k2=9_k13=1``; none for a name of another form."""
    parts = re.fullmatch(r"eng(\d+)(?:_(.+))?", name)
    if not parts:
        return {}
    rank = next((problem["rank"][name] for problem in planned if name in problem["rank"]), None)
    return {"engine": int(parts[1]), "knobs": (parts[2] or "").replace("_", " "), "heuristic_rank": rank}


def _first_columns(row: tuple[str, ...]) -> dict[str, object]:
    """Return the first columns of a row: device, problem, settings, algorithm."""
    *device, problem, algorithm = row
    return {**dict(zip(DEVICE_COLUMNS, device, strict=True)), **conv_of(problem).to_dict(), "algorithm": algorithm}


def _kernels(visits: pd.DataFrame, counters: Mapping[tuple[str, ...], list[dict[str, Any]]]) -> list[dict[str, object]]:
    """Return the kernels of each row's first visit with kernels, in launch order, with the number of blocks.

    Counters of the same launch, by its position and name, add further columns.
    """
    launches = []
    for *row, kernels in visits[visits["kernels"].map(bool)].drop_duplicates(list(KEY))[[*KEY, "kernels"]].to_numpy():
        counted = counters.get(tuple(row), ())
        for index, kernel in enumerate(kernels):
            launch = {**asdict(kernel), "kernel_name": demangled(kernel.kernel_name)}
            launch["blocks"] = kernel.grid_x * kernel.grid_y * kernel.grid_z
            # Another kernel may have run under the profiler.
            if index < len(counted) and counted[index]["kernel_name"] == launch["kernel_name"]:
                launch = {**counted[index], "counted_time_us": counted[index].get("time_us", math.nan), **launch}
            launches.append({**_first_columns(tuple(row)), "kernel_index": index, **launch})
    return launches


def _anchors(visits: pd.DataFrame) -> list[dict[str, Any]]:
    """Return a record for each row with several ok visits: its problem, drift and trend.

    ``drift`` is slowest / fastest − 1. ``trend`` is last / first − 1 in order of time.
    """
    ok = visits[visits["status"] == "ok"]
    repeated: Any = ok[ok.duplicated(list(KEY), keep=False)].sort_values("at_s", kind="stable").groupby(list(KEY))
    return [
        {"gpu": row[0], "problem": row[-2], "algorithm": row[-1], "visits": len(times)}
        | {"drift": float(times.max() / times.min() - 1.0), "trend": float(times.iloc[-1] / times.iloc[0] - 1.0)}
        for row, times in repeated["time_us"]
    ]


def _rankings(found: Records, metadata: dict[str, object]) -> Dataset:
    """Return the rankings of all logs. If a problem is ranked twice for a GPU and version, the later file counts."""
    latest = {_values(row, KEY[:-1]): row for row in found["problem"]}  # an anchor is listed at each of its visits
    rows = [row for problem in latest.values() for row in _ranked(problem)]
    metadata["unranked_problems"] = sum(not problem["ranking"] for problem in latest.values())
    return Dataset(_table(pd.DataFrame(rows), "dataset"), "listed", metadata=metadata)


def _ranked(problem: Mapping[str, Any]) -> list[dict[str, object]]:
    """Return a row per engine configuration; one that cuDNN cannot build has no row."""
    first = {entry["algorithm"]: entry for entry in reversed(problem["ranking"])}
    return [
        {
            **_first_columns((*_values(problem, KEY[:-1]), name)),
            **_configuration(name, [problem]),
            "workspace_bytes": first[name].get("workspace_bytes"),
            "deterministic": first[name].get("deterministic"),
            **_origin([problem]),
        }
        for name in problem["rank"]
    ]


def _operators(found: Records, metadata: dict[str, object]) -> Dataset:
    """Return a row per operator problem: family, operator, sizes (missing if it has no such size), times in µs.

    ``kernels`` is the number of launches; ``kernel_name`` is the longest launch. If two logs hold the same problem of
    the same device, the later log counts.
    """
    latest = {_values(row, KEY[:-1]): row for row in found["operator"]}
    return Dataset(pd.DataFrame(map(_operator_row, latest.values())), metadata=metadata)


def _operator_row(row: Mapping[str, Any]) -> dict[str, object]:
    operator = parse_operator(row["problem"])
    values = row["values"]
    kernels = values.pop("kernels")
    is_throttled = throttled(values.pop("throttle_reasons"))
    longest = max(kernels, key=lambda kernel: kernel.time_us, default=None)
    return {
        **{name: row[name] for name in DEVICE_COLUMNS},
        "family": FAMILY_OF_KIND[operator.kind],
        "operator": operator.kind,
        **{name: getattr(operator, name) for name in operator.setting_names()},
        **operator.sizes,
        "algorithm": "default",
        **values,
        "sm_clock_mhz": values["sm_clock_mhz"] or row["conditions"].get("sm_clock_mhz"),
        "throttled": is_throttled,
        "kernels": len(kernels),
        "kernel_name": demangled(longest.kernel_name) if longest else None,
    }
