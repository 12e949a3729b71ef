"""Runs → one dataset: a row per (device, settings, problem, algorithm), and a table of kernels keyed alike.

Shards of a plan and runs of other devices go together. A problem measured several times (anchors, or two runs) becomes
one row: its time is the median of the visits' medians, and how far the visits drifted is told in the metadata. Logs of
``--heuristic-only`` become a table of rankings, without status and time; logs of operators a table of their own.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from surrogate.collect import log
from surrogate.collect.device import Measurement, demangled
from surrogate.collect.log import Contents, conv_of
from surrogate.collect.operators.operator import parse
from surrogate.collect.protocol import drift, summarise, trend
from surrogate.collect.visits import Gathered, Key, Visit, gather
from surrogate.dataset.columns import SETTING_COLUMNS, columns
from surrogate.features.errors import InputError
from surrogate.features.families import FAMILY_OF_KIND

DEVICE_COLUMNS = SETTING_COLUMNS[:3]


@dataclass(frozen=True)
class Merged:
    """A dataset ready to be stored: rows, kernels (empty where none were seen), JSON metadata, kind of candidates.

    Candidates are ``all`` where every algorithm of a problem is tried: one without a row is unmeasured.
    """

    rows: pd.DataFrame
    kernels: pd.DataFrame
    metadata: dict[str, Any]
    candidates: str = "all"


def merge_runs(paths: Sequence[str | Path]) -> Merged:
    """The dataset that the logs at ``paths`` hold together: measured runs, rankings or operators.

    Raises `InputError` for a file that is no log, where no log holds anything, or where several kinds came.
    """
    logs = [(Path(path), log.read(path)) for path in paths]
    kinds = {_kind(contents): path for path, contents in logs if contents.header is not None}
    if len(kinds) > 1:
        described = " and ".join(f"{path} holds {kind}" for kind, path in kinds.items())
        raise InputError(f"{described}; merge each kind into a table of its own")
    merge = {"rankings without times": _rankings, "operators": _operators}.get(
        next(iter(kinds), ""), _measured
    )
    runs = [contents.header.to_dict() for _, contents in logs if contents.header is not None]
    return merge(logs, {"runs": runs})


def _kind(contents: Contents) -> str:
    assert contents.header is not None
    if contents.header.protocol.get("heuristic_only"):
        return "rankings without times"
    return "operators" if any(record["kind"] == "operator" for record in contents.records) else "measurements"


def _named(logs: Sequence[tuple[Path, Contents]]) -> str:
    return ", ".join(str(path) for path, _ in logs) or "nothing"


def _table(rows: list[dict[str, Any]], table: str) -> pd.DataFrame:
    """``rows`` with the declared columns of ``table`` in their order and type; text or None where it is text."""
    frame = pd.DataFrame(rows)
    kinds = {column.name: column.kind for column in columns(table) if column.name in frame}
    types: Any = {name: kind for name, kind in kinds.items() if kind != "text"}
    return frame[list(kinds)].astype(types)


def _measured(logs: Sequence[tuple[Path, Contents]], metadata: dict[str, Any]) -> Merged:
    gathered = Gathered()
    for path, contents in logs:
        if contents.header is not None:
            try:
                gather(contents.header, contents.records, gathered)
            except (KeyError, TypeError, AttributeError, ValueError) as error:
                raise InputError(f"{path}: a record is damaged ({error!r}); leave the file out") from None
    if not gathered.visits:
        raise InputError(f"{_named(logs)}: no measurement to merge; collect some first")
    metadata |= {"anchors": _anchors(gathered), "duplicates_dropped": gathered.duplicates}
    rows = [_row(key, gathered) for key in gathered.visits]
    kernels = _kernels(gathered)
    return Merged(
        _table(rows, "dataset"), _table(kernels, "kernels") if kernels else pd.DataFrame(), metadata
    )


def _settings(key: Key) -> dict[str, Any]:
    """What every row of ``key`` begins with."""
    device = dict(zip(DEVICE_COLUMNS, key.device, strict=True))
    return {**device, **conv_of(key.problem).to_dict(), "algorithm": key.algorithm}


def _row(key: Key, gathered: Gathered) -> dict[str, Any]:
    problem = gathered.notes[key.device, key.problem]
    visits = gathered.visits[key]
    ok = [visit for visit in visits if visit.result.status == "ok"]
    shown = (ok or visits)[0].result
    find_us = problem.find_us.get(key.algorithm)
    clocks_mhz = [visit.clock_mhz for visit in visits if visit.clock_mhz]
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
        "slow_clock": any(visit.slow_clock for visit in visits),
        "throttled": any(visit.throttled for visit in visits),
        **_times([visit.result for visit in ok]),
    }


def _times(results: Sequence[Measurement]) -> dict[str, Any]:
    """The time columns of measurements of one problem, all of them ok; empty columns where there is none."""
    if not results:
        empty = ("time_us", "time_us_min", "time_us_max", "time_us_mad", "span_us", "stable", "timer")
        return {**dict.fromkeys(empty), "repeats": 0}
    summaries = [summarise(result.times_us) for result in results]
    judged = [summary.stable for summary in summaries if summary.judgeable]
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
    """The kernels of each row's first visit that saw any, in launch order, with the launched blocks."""
    return [
        {
            **_settings(key),
            "kernel_index": index,
            **asdict(kernel),
            "kernel_name": demangled(kernel.kernel_name),
            "blocks": kernel.grid_x * kernel.grid_y * kernel.grid_z,
        }
        for key, visits in gathered.visits.items()
        for index, kernel in enumerate(next((v.result.kernels for v in visits if v.result.kernels), ()))
    ]


def _anchors(gathered: Gathered) -> list[dict[str, Any]]:
    """Per row with several ok visits: its problem, the visits' spread and their trend, in the order of time."""
    entries: list[dict[str, Any]] = []
    for key, visits in gathered.visits.items():
        ok: list[Visit] = sorted(
            (visit for visit in visits if visit.result.status == "ok"), key=lambda visit: visit.at_s
        )
        if len(ok) > 1:
            medians = [summarise(visit.result.times_us).median_us for visit in ok]
            named = {"gpu": key.device[0], "problem": key.problem, "algorithm": key.algorithm}
            entries.append({**named, "visits": len(ok), "drift": drift(medians), "trend": trend(medians)})
    return entries


def _rankings(logs: Sequence[tuple[Path, Contents]], metadata: dict[str, Any]) -> Merged:
    """The rankings of all logs; of a problem ranked twice for one GPU and version, the later file's counts."""
    rankings: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for path, contents in logs:
        assert contents.header is not None  # `_kind` has looked at it
        device = contents.header.device
        for record in contents.records:
            if record["kind"] == "problem":
                key = (device.gpu, device.library, device.library_version)
                try:
                    rankings[*key, record["problem"]] = _ranked(key, record)
                except (KeyError, TypeError, AttributeError, ValueError) as error:
                    raise InputError(f"{path}: a record is damaged ({error!r}); leave the file out") from None
    rows = [row for ranking in rankings.values() for row in ranking]
    if not rows:
        raise InputError(f"{_named(logs)}: no engine is ranked; collect some first")
    metadata["unranked_problems"] = sum(not ranking for ranking in rankings.values())
    return Merged(_table(rows, "dataset"), pd.DataFrame(), metadata, "listed")


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


def _operators(logs: Sequence[tuple[Path, Contents]], metadata: dict[str, Any]) -> Merged:
    """A row per operator problem: family, operator, its sizes (missing where it has no such), times in µs.

    ``kernels`` counts the launches, ``kernel_name`` is the longest one's; of two logs that hold a problem of one device
    the later one counts.
    """
    rows: dict[tuple[str, ...], dict[str, Any]] = {}
    for path, contents in logs:
        assert contents.header is not None  # `_kind` has looked at it
        device = contents.header.device
        key = (device.gpu, device.library, device.library_version)
        for record in contents.records:
            if record["kind"] == "operator":
                try:
                    row = dict(zip(DEVICE_COLUMNS, key, strict=True)) | _operator_row(record)
                except (KeyError, TypeError, AttributeError, ValueError) as error:
                    raise InputError(f"{path}: a record is damaged ({error!r}); leave the file out") from None
                rows[*key, record["problem"]] = row
    return Merged(pd.DataFrame(list(rows.values())), pd.DataFrame(), metadata)


def _operator_row(record: Mapping[str, Any]) -> dict[str, Any]:
    operator = parse(record["problem"])
    result = Measurement.from_dict(record["result"])
    longest = max(result.kernels, key=lambda kernel: kernel.time_us, default=None)
    sizes = operator.named
    if "window" in sizes:  # windows are square here, and never padded
        sizes |= {"window_w": sizes["window"], "stride_w": sizes["stride"], "pad": 0, "pad_w": 0}
    return {
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
