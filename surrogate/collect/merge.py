"""Runs → one dataset: a row per (device, settings, problem, algorithm), and a table of kernels keyed alike.

Shards of a plan and runs of other devices go together. A problem measured several times (anchors, or two
runs) becomes one row: its time is the median of the visits' medians, and how far the visits drifted is told
in the metadata.
"""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from surrogate.collect import log
from surrogate.collect.device import demangled
from surrogate.collect.protocol import Summary, drift, summarise, trend
from surrogate.collect.records import conv_of
from surrogate.collect.visits import Gathered, Key, Visit, gather
from surrogate.features.errors import InputError
from surrogate.features.problem import SIZE_COLUMNS

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


def merge_runs(paths: Sequence[str | Path]) -> Merged:
    """The dataset that the logs at ``paths`` hold together: measured runs, or rankings (``--heuristic-only``).

    Raises `InputError` for a file that is no log, where no log holds anything, or where both kinds came.
    """
    from surrogate.collect.rankings import is_ranking, merge_rankings

    logs = [(Path(path), log.read(path)) for path in paths]
    rankings = [path for path, contents in logs if is_ranking(contents.header)]
    if not rankings:
        return _measured(logs)
    if len(rankings) < len(logs):
        raise InputError(
            f"{rankings[0]} holds a ranking without times (--heuristic-only), others hold measurements;"
            " merge each kind into a table of its own"
        )
    return merge_rankings(logs)


def _measured(logs: Sequence[tuple[Path, log.Contents]]) -> Merged:
    """The dataset of measured runs."""
    gathered = Gathered()
    runs: list[dict[str, Any]] = []
    for path, contents in logs:
        if contents.header is not None:
            runs.append(contents.header.to_dict())
            try:
                gather(contents.header, contents.records, gathered)
            except (KeyError, TypeError, AttributeError, ValueError) as error:
                raise InputError(f"{path}: a record is damaged ({error!r}); leave the file out") from None
    if not gathered.visits:
        raise InputError(
            f"{', '.join(str(path) for path, _ in logs) or 'nothing'}: no measurement to merge; collect some first"
        )
    rows = pd.DataFrame([_row(key, gathered) for key in gathered.visits], columns=pd.Index(COLUMNS))
    metadata = {"runs": runs, "anchors": _anchors(gathered), "duplicates_dropped": gathered.duplicates}
    return Merged(_typed(rows), _kernels(gathered), metadata)


def _row(key: Key, gathered: Gathered) -> dict[str, Any]:
    conv = conv_of(key.problem)
    problem = gathered.noted[key.device, key.problem]
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


def _times(visits: Sequence[Visit]) -> dict[str, Any]:
    """The time columns of visits that are ok."""
    summaries = [summarise(visit.result.times_us) for visit in visits]
    judged = [summary.stable for summary in summaries if summary.judgeable]
    spans = [statistics.median(visit.result.spans_us) for visit in visits if visit.result.spans_us]
    return {
        "time_us": statistics.median(summary.median_us for summary in summaries),
        "time_us_min": min(summary.min_us for summary in summaries),
        "time_us_max": max(summary.max_us for summary in summaries),
        "time_us_mad": statistics.median(summary.mad_us for summary in summaries),
        "span_us": statistics.median(spans) if spans else None,
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


def _kernels(gathered: Gathered) -> pd.DataFrame:
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
                    "kernel_name": demangled(kernel.kernel_name),
                    "blocks": blocks,
                }
            )
    leading = [*SETTING_COLUMNS, *SIZE_COLUMNS, "algorithm", "kernel_index"]
    frame = pd.DataFrame(found)
    return frame[[*leading, *(name for name in frame.columns if name not in leading)]] if found else frame


def _anchors(gathered: Gathered) -> list[dict[str, Any]]:
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


def _median(visit: Visit) -> float:
    summary: Summary = summarise(visit.result.times_us)
    return summary.median_us
