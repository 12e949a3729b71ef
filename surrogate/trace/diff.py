"""Two traces of one program compared: device time by layer, layer type, operator or kernel, before and after.

All figures are per iteration, so that traces of different lengths compare. Rows are matched in stages, from the same
name and shape to what only resembles it. What one trace alone has makes rows, too, so that the changes of all rows add
up to the change of the device time.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from surrogate.features.errors import InputError, require_known
from surrogate.features.kernels import identify
from surrogate.trace.calls import is_shape
from surrogate.trace.events import kinds
from surrogate.trace.events.iterations import iteration_at
from surrogate.trace.events.tables import Ints, Trace, enclosing, linked
from surrogate.trace.layers import OUTSIDE
from surrogate.trace.profiling import Profile, union_us
from surrogate.trace.result import ResultTable, Row
from surrogate.trace.tables import layer_table

_STAGES = {
    "name, shape": ["name", "shape"], "shape": ["like", "shape", "of", "nth"], "order": ["like", "of", "nth"],
    "name": ["like"],
}  # fmt: skip
LEVELS = {
    "layer": _STAGES, "type": {"name": ["name"]}, "operator": _STAGES,
    "kernel": {"name": ["name"], "operator": ["like"], "family": ["family"]},
}  # fmt: skip
"""What rows are → the stages that match them: how a stage is called, and the columns that must agree."""
WELL_MATCHED, LEAST_MATCHED = 0.9, 0.05
"""Shares of the device time: from the first no other level is tried, below the second the programs are not the same."""
_OPERATOR = re.compile(r"(?!autograd::engine|Compiled).*(?:::|Backward\d*$)")
_LIBRARY = re.compile(r"(?:cudnn|miopen|native)_?|\d+$", re.IGNORECASE)
"""What names of the same operator differ by on GPUs of two makers, and in two versions of PyTorch."""


@dataclass(frozen=True, slots=True)
class TraceDiff:
    """``totals``: iteration, device and host times; ``rows``: device time ``by`` something; A is before, B after.

    Times in µs per iteration, ``ratio`` after over before, ``calls`` how many per iteration launched device work,
    ``match`` the stage of `LEVELS` that matched a row. ``matched_pct``: of A's and of B's device time.
    """

    by: str
    totals: ResultTable
    rows: ResultTable
    matched_pct: tuple[float, float]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        tables = {"totals": list(self.totals), "rows": list(self.rows), "notes": list(self.rows.notes)}
        return {"by": self.by, "matched_pct": list(self.matched_pct), **tables}


@dataclass(frozen=True, slots=True, eq=False)
class _Side:
    """A profile, the positions of its iterations that are compared, and their device activities."""

    profile: Profile
    own: tuple[int, ...]
    rows: Ints

    @property
    def trace(self) -> Trace:
        return self.profile.trace


def trace_diff(
    before: Profile, after: Profile, by: str | None = None, iterations: tuple[Sequence[int], Sequence[int]] = ((), ())
) -> TraceDiff:
    """Device times of two traces side by side, the largest change first.

    ``by``: one of `LEVELS`; without it the first of type, operator and kernel that matches `WELL_MATCHED` of the time
    of both traces, else the one that matches most. Operators are the outermost ones with their shapes. ``iterations``
    are the positions of those that count in each trace, all where there are none.

    Raises `InputError` for another level, an iteration that is not there, iterations without device activity, and where
    less than `LEAST_MATCHED` of the time of one trace matches.
    """
    sides = _side(before, iterations[0]), _side(after, iterations[1])
    answers = []
    for level in (by,) if by else ("type", "operator", "kernel"):
        require_known("level", level, tuple(LEVELS))
        answers.append(_compared(*sides, level))
        if min(answers[-1].matched_pct) >= 100 * WELL_MATCHED:
            break
    best = max(answers[::-1], key=lambda answer: min(answer.matched_pct))
    if min(best.matched_pct) < 100 * LEAST_MATCHED:
        shares = " and ".join(f"{share:.2g} %" for share in best.matched_pct)
        raise InputError(
            f"{before.trace.source} and {after.trace.source} share {shares} of their device time by {best.by}; give two"
            " traces of the same program, or match by something else"
        )
    return best


def _side(profile: Profile, wanted: Sequence[int]) -> _Side:
    layers, source = profile.layers, profile.trace.source
    last = len(layers.iterations) - 1
    if wrong := [index for index in wanted if not 0 <= index <= last]:
        raise InputError(f"iteration {wrong[0]} is not in {source}; it has 0 to {last}")
    own = tuple(dict.fromkeys(wanted)) or tuple(range(last + 1))
    rows = np.flatnonzero(np.isin(layers.iteration_of_activity, own))
    if not len(rows):
        raise InputError(f"{source}: holds no device activity in its iterations; give a trace of a GPU")
    return _Side(profile, own, rows)


def _compared(before: _Side, after: _Side, by: str) -> TraceDiff:
    left, parts = [_items(before, by), _items(after, by)], []
    whole_us = [items["us"].sum() or 1.0 for items in left]
    for match, columns in LEVELS[by].items():
        sums = [_summed(items, columns) for items in left]
        parts.append(sums[0].join(sums[1], how="inner", lsuffix="_before", rsuffix="_after").assign(match=match))
        left = [items[~items["key"].isin(parts[-1].index)].copy() for items in left]
    shared = pd.concat(parts)
    for items, suffix, match in zip(left, ("_before", "_after"), ("only A", "only B"), strict=True):
        parts.append(_summed(items, ["name", "shape"]).add_suffix(suffix).assign(match=match))
    table = pd.concat([part for part in parts if len(part)]).reindex(columns=shared.columns)
    names = {by: "name", "shape": "shape"} if "shape" in LEVELS[by] else {by: "name"}
    rows: list[Row] = [
        {
            **{name: _both(row[f"{column}_before"], row[f"{column}_after"]) for name, column in names.items()},
            **_change(row["us_before"], row["us_after"]),
            **{name: row[name] for name in ("calls_before", "calls_after", "match")},
        }
        for row in table.fillna({"us_before": 0, "us_after": 0, "calls_before": 0, "calls_after": 0}).to_dict("records")
    ]
    rows.sort(key=lambda row: (-abs(row["change_us"]), -row["before_us"]))
    matched = tuple(float(100 - 100 * items["us"].sum() / us) for items, us in zip(left, whole_us, strict=True))
    notes = ["{:.3g} % of A's device time and {:.3g} % of B's are matched by {}".format(*matched, by)]
    calls = shared["calls_before"].sum(), shared["calls_after"].sum()
    if max(calls) > 1.5 * min(calls):
        notes.append("what matches is called {:,.4g} times an iteration in A, {:,.4g} in B".format(*calls))
    totals = _totals(before), _totals(after)
    lines = tuple({"total": name, **_change(us, totals[1][name])} for name, us in totals[0].items())
    title = f"By {by}, µs per iteration, A before and B after"
    return TraceDiff(by, ResultTable("Totals", lines), ResultTable(title, tuple(rows), tuple(notes)), matched)


def _both(before: Any, after: Any) -> str:
    """One text for both sides, of which one may be missing."""
    texts = [text for text in (before, after) if isinstance(text, str)]
    return " → ".join(dict.fromkeys(texts))


def _change(before_us: float, after_us: float) -> Row:
    change_us, ratio = after_us - before_us, after_us / before_us if before_us else None
    change_pct = None if ratio is None else 100 * (ratio - 1)
    return {
        "before_us": before_us, "after_us": after_us, "change_us": change_us, "change_pct": change_pct, "ratio": ratio
    }  # fmt: skip


def _summed(items: pd.DataFrame, columns: list[str]) -> pd.DataFrame:
    """The items with their sums by ``columns``, which become their ``key``; ``nth`` counts the ``of`` alike ones."""

    def several(texts: pd.Series) -> str:
        different = list(dict.fromkeys(texts))
        return different[0] if len(different) < 2 else f"{different[0]} and {len(different) - 1} more"

    alike = items.groupby([column for column in columns if column not in ("of", "nth")])
    items["nth"], items["of"] = alike.cumcount(), alike["us"].transform("size")
    items["key"] = list(items[columns].itertuples(index=False, name=None))
    sums = {"name": ("name", several), "shape": ("shape", several), "us": ("us", "sum"), "calls": ("calls", "sum")}
    return items.groupby("key", sort=False).agg(**sums)


def _items(side: _Side, by: str) -> pd.DataFrame:
    """Device time in µs and calls per iteration of everything with a name and shape, in the order of first use."""
    trace, layers, activities = side.trace, side.profile.layers, side.trace.activities
    names, ranges = np.array(trace.names, dtype=object), trace.ranges
    kernel = names[activities.name[side.rows]]
    is_operator = (ranges.kind == kinds.OPERATOR) & trace.named(ranges, _OPERATOR.match)
    around = linked(enclosing(ranges, is_operator, outermost=True), activities.range[side.rows])
    operator = np.where(around >= 0, linked(names[ranges.name], around, ""), kernel)
    like = [_LIBRARY.sub("", name) for name in operator]
    items: dict[str, Any] = {"name": operator, "like": like, "shape": "", "family": ""}
    if by == "operator":
        texts = {row: _shapes(trace, row) for row in np.unique(around).tolist()}
        items["shape"] = [texts[row] for row in around.tolist()]
    elif by == "kernel":
        around = np.arange(len(kernel))
        items |= {"name": kernel, "family": [_family(name) for name in kernel]}
    else:
        around = layers.of_activity[side.rows]
        items["like"] = np.array([*layers.type, OUTSIDE], dtype=object)[around]
        items["name"] = items["like"] if by == "type" else np.array([*layers.name, OUTSIDE], dtype=object)[around]
        if by == "layer":
            shapes = {row["layer"]: row["shape"] or "" for row in layer_table(side.profile)}
            items["shape"] = [shapes.get(name, "") for name in items["name"]]
    # What is launched outside of everything counts each for itself.
    call = np.where(around >= 0, around, -1 - np.arange(len(around)))
    table = pd.DataFrame({**items, "us": activities.time_us[side.rows] / len(side.own), "call": call})
    sums = {"us": ("us", "sum"), "calls": ("call", lambda column: column.nunique() / len(side.own))}
    first = {"like": ("like", "first"), "family": ("family", "first")}
    return table.groupby(["name", "shape"], sort=False).agg(**sums, **first).reset_index()


def _shapes(trace: Trace, row: int) -> str:
    """The shapes of an operator's tensors: ``8x3x32x32, 16x3x3x3``."""
    shapes = trace.shapes_of(row) if row >= 0 else None
    return ", ".join("x".join(map(str, shape)) for shape in shapes or () if shape and is_shape(shape))


def _family(kernel: str) -> str:
    """The kernel's family where its name tells it, else the name without arguments."""
    known = identify(kernel)
    return known.family if known else re.sub(r"[<(].*", "", kernel.replace("(anonymous namespace)::", ""))


def _totals(side: _Side) -> dict[str, float]:
    """Times per iteration in µs; ``host`` has operators and API calls, ``host waiting`` the synchronising ones."""
    trace, every = side.trace, side.profile.layers.iterations
    activities, ranges, calls = trace.activities, trace.ranges, trace.calls
    in_operator = np.isin(iteration_at(every, ranges.start_ns), side.own) & (ranges.kind == kinds.OPERATOR)
    in_call = np.isin(iteration_at(every, calls.start_ns), side.own)
    starts, ends = (
        np.concatenate([getattr(ranges, name)[in_operator], getattr(calls, name)[in_call]])
        for name in ("start_ns", "end_ns")
    )
    sums = {
        "iteration": sum(every[position].time_us for position in side.own),
        "device": float(activities.time_us[side.rows].sum()),
        "device busy": union_us(activities.start_ns[side.rows], activities.end_ns[side.rows]),
        "device idle": float(side.profile.idle_us[side.rows].sum()),
        "host": union_us(starts, ends),
        "host waiting": float(calls.time_us[in_call & (calls.kind == kinds.SYNC_CALL)].sum()),
    }
    return {name: us / len(side.own) for name, us in sums.items()}
