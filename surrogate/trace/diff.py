"""Two traces of one program compared: device time by layer, layer type, operator or kernel, before and after.

All figures are per iteration, so that traces of different lengths compare. Rows are matched in stages, from the same
name and shape to what only resembles it. What one trace alone has makes rows, too, so that the changes of all rows add
up to the change of the device time.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from surrogate.features.errors import InputError, check_choice
from surrogate.features.kernels import identify
from surrogate.trace import events
from surrogate.trace.calls import is_shape
from surrogate.trace.events.parts import iterations as find_iterations
from surrogate.trace.events.parts import steady_run, trim
from surrogate.trace.events.read import as_trace
from surrogate.trace.events.tables import Trace, enclosing, linked, take_rows
from surrogate.trace.profiling import NO_DEVICE, Profile, profile, union_us
from surrogate.trace.result import Row
from surrogate.trace.tables import idle_of_step, step_table

_BY_SHAPE = {"name, shape": "name shape", "shape": "like shape of nth", "order": "like of nth", "name": "like"}
_TYPE = {"name": "name", "alike": "like"}
_KERNEL = {"name": "name", "operator": "like", "family": "family"}
LEVELS = {"layer": _BY_SHAPE, "type": _TYPE, "operator": _BY_SHAPE, "kernel": _KERNEL}
"""What rows are → the stages that match them: how a stage is called, and the columns that must agree."""
MIN_MATCHED_PCT = 5.0
"""With less of the device time in rows that match the programs are not the same."""
_SURE = {"operator": ("name, shape", "shape", "order"), "kernel": ("name",)}
"""Levels and their stages that tell one program from another: every program has convolutions and additions."""
_OPERATOR = re.compile(r"(?!autograd::engine|Compiled).*(?:::|Backward\d*$)")
_LIBRARY = re.compile(r"(?:cudnn|miopen|native)_?|\d+$", re.IGNORECASE)
"""What names of the same operator differ by on GPUs of two makers, and in two versions of PyTorch."""

_Side = tuple[Profile, int, float]
"""What counts of a trace, and how many iterations of which median time in µs that is."""


@dataclass(frozen=True, slots=True)
class TraceDiff:
    """``totals``: iteration, device and host times; ``rows``: device time ``by`` something; A is before, B after.

    Times in µs per iteration, ``ratio`` after over before, ``calls`` how many per iteration launched device work,
    ``match`` the stage of `LEVELS` that matched a row. ``matched_pct``: of A's and of B's device time, in ``stages`` by
    each stage.
    """

    by: str
    matched_pct: tuple[float, ...]
    stages: dict[str, tuple[float, ...]]
    totals: tuple[Row, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...]


def trace_diff(
    before: Trace | str | Path,
    after: Trace | str | Path,
    by: str | None = None,
    iterations: Sequence[Sequence[int]] = ((), ()),
) -> TraceDiff:
    """Device times of two traces, or of their files, side by side, the largest change first.

    ``by``: one of `LEVELS`; without it that one of operator, type and kernel that matches most of the time, in tens of
    percent, the first of equal ones, and a note first of all says where less than half of both traces matches by name
    and shape, as different programs do. Operators are the outermost ones with their shapes. ``iterations`` are the
    indices of those that count in each trace, `steady_run`'s where there are none; nothing outside of them counts.

    Raises `InputError` for another level, an iteration that is not there, a trace without device activity, and where
    less than `MIN_MATCHED_PCT` of the time of one matches.
    """
    before, after = map(as_trace, (before, after))
    sides = [_side(trace, wanted) for trace, wanted in zip((before, after), iterations, strict=True)]
    answers = [_compared(sides, level) for level in ((by,) if by else ("operator", "type", "kernel"))]
    best = max(answers, key=lambda answer: round(min(answer.matched_pct), -1))
    if min(best.matched_pct) < MIN_MATCHED_PCT:
        raise InputError(
            f"{before.source} and {after.source}: {best.notes[0]}; give two traces of one program, or match otherwise"
        )
    sure = [[answer.stages[stage] for stage in _SURE.get(answer.by, ())] for answer in answers]
    if not by and max(max(map(sum, zip(*stages, strict=True)), default=0.0) for stages in sure) < 50:
        different = "these seem to be different programs: less than half of either matches by name and shape"
        return replace(best, notes=(different, *best.notes))
    return best


def _side(trace: Trace, wanted: Sequence[int]) -> _Side:
    """The profile of the iterations that count, their number, and the median of their times in µs."""
    every = find_iterations(trace)
    kept, text = steady_run(every)
    indices = tuple(dict.fromkeys(wanted)) or tuple(kept)
    part = replace(profile(trim(trace, iterations_kept=indices)), left_out="" if wanted else text)
    if not len(part.trace.activities):
        raise InputError(
            f"{trace.source}: diff compares kernels of a GPU, and this trace, or the part of it, {NO_DEVICE};"
            " seer trace summary has the host's time by layer type"
        )
    return part, len(indices), float(np.median([every[index].time_us for index in indices]))


def _compared(sides: Sequence[_Side], by: str) -> TraceDiff:
    """Both sides at one level, matched stage by stage: what a stage leaves goes on to the next one."""
    check_choice("level", by, tuple(LEVELS))
    # A row for every key of both sides; the last stage, "", has what stands on one side only.
    left = [_items(part, count, by) for part, count, _ in sides]
    parts = []
    for match, columns in {**LEVELS[by], "": "name shape"}.items():
        sums = [_summed(items, columns.split()) for items in left]
        both = sums[0].add_suffix("_before").join(sums[1].add_suffix("_after"), how="inner" if match else "outer")
        parts.append(both.assign(match=match))
        left = [items[~items["key"].isin(both.index)].copy() for items in left]
    table = pd.concat(parts)
    # Times and calls of what one side lacks are 0.
    matched = table[table["match"] != ""]
    us = ["us_before", "us_after"]
    calls = ["calls_before", "calls_after"]
    names = {by: "name", "shape": "shape"} if "shape" in LEVELS[by] else {by: "name"}
    rows: list[Row] = [
        {name: _both(row[f"{column}_before"], row[f"{column}_after"]) for name, column in names.items()}
        | _change(*(row[name] for name in us))
        | {name: row[name] for name in calls}
        | {"match": row["match"] or ("only A" if row["calls_before"] else "only B")}
        for row in table.fillna(dict.fromkeys([*us, *calls], 0.0)).to_dict("records")
    ]
    rows.sort(key=lambda row: (-abs(row["change_us"]), -row["before_us"]))
    # Shape (stages, 2): the shares of both sides' times that each stage matches.
    stages = 100 * table.groupby("match")[us].sum().reindex(list(LEVELS[by]), fill_value=0.0) / table[us].sum()
    shares = {match: tuple(stages.loc[match].fillna(0.0).tolist()) for match in stages.index}
    matched_pct = tuple(map(sum, zip(*shares.values(), strict=True)))
    each = ["by {} {:.3g} and {:.3g} %".format(match, *both) for match, both in shares.items() if max(both) >= 0.5]
    notes = ["{:.3g} % of A's device time and {:.3g} % of B's are matched by {}".format(*matched_pct, by)]
    notes[0] += f" ({'; '.join(each)})" if each else ""
    called = matched[calls].sum().tolist()
    if max(called) > 1.5 * min(called):
        notes.append("what matches is called {:,.4g} times an iteration in A, {:,.4g} in B".format(*called))
    before, after = map(_totals, sides)
    totals = tuple({"total": name, **_change(time_us, after[name])} for name, time_us in before.items())
    notes += [f"{part.trace.source}: {part.left_out}" for part, _, _ in sides if part.left_out]
    return TraceDiff(by, matched_pct, shares, totals, tuple(rows), tuple(notes))


def _both(before: object, after: object) -> str:
    """One text for both sides, of which one may be missing."""
    return " → ".join(dict.fromkeys(text for text in (before, after) if isinstance(text, str) and text))


def _change(before_us: float, after_us: float) -> Row:
    ratio = after_us / before_us if before_us else None
    change = {"change_us": after_us - before_us, "change_pct": None if ratio is None else 100 * (ratio - 1)}
    return {"before_us": before_us, "after_us": after_us, **change, "ratio": ratio}


def _summed(items: pd.DataFrame, columns: list[str]) -> pd.DataFrame:
    """The sums of the items by ``columns``, which become their ``key``; ``nth`` counts the ``of`` alike ones."""

    def several(texts: pd.Series) -> str:
        different = texts.unique()
        return different[0] if len(different) < 2 else f"{different[0]} and {len(different) - 1} more"

    alike = items.groupby([column for column in columns if column not in ("of", "nth")])
    items["nth"] = alike.cumcount()
    items["of"] = alike["us"].transform("size")
    items["key"] = list(items[columns].itertuples(index=False, name=None))
    return items.groupby("key", sort=False).agg({"name": several, "shape": several, "us": "sum", "calls": "sum"})


def _items(part: Profile, count: int, by: str) -> pd.DataFrame:
    """Device time in µs and calls per iteration of everything with a name and shape, in the order of first use."""
    trace = part.trace
    layers = part.layers
    activities = part.trace.activities
    ranges = part.trace.ranges
    names = np.array(trace.names, dtype=object)
    kernel = names[activities.name]
    is_operator = (ranges.kind == events.OPERATOR) & trace.name_matches(ranges, _OPERATOR.match)
    around = linked(enclosing(ranges, is_operator, outermost=True), activities.range)
    operator = np.where(around >= 0, linked(names[ranges.name], around, ""), kernel)
    shapes = {row: _shapes(trace, row) for row in np.unique(around).tolist()}
    like = [_LIBRARY.sub("", name) if row >= 0 else _family(name) for name, row in zip(operator, around, strict=True)]
    table = pd.DataFrame(
        {"name": operator, "like": like, "shape": list(map(shapes.get, around.tolist())), "family": ""}
    )
    if by == "kernel":
        like = np.where(around >= 0, table["like"], kernel)
        table = table.assign(name=kernel, like=like, shape="", family=list(map(_family, kernel)))
        around = np.arange(len(kernel))
    elif by != "operator":
        around = layers.of_activity
        types = [text.lower().replace("_", "") for text in layers.type]
        for column, texts in (("like", types), ("name", layers.name if by == "layer" else layers.type)):
            table[column] = np.where(around >= 0, np.array([*texts, ""], dtype=object)[around], table[column])
        table["shape"] = table.groupby("name")["shape"].transform("first") if by == "layer" else ""
    # What is launched outside of layers goes by its operator or kernel, and each counts for itself.
    table["calls"] = np.where(around >= 0, around, -1 - np.arange(len(around)))
    groups = table.assign(us=activities.time_us).groupby(["name", "shape"], sort=False)
    items = groups.agg({"like": "first", "family": "first", "us": "sum", "calls": "nunique"}).reset_index()
    return items.assign(us=items["us"] / count, calls=items["calls"] / count)


def _shapes(trace: Trace, row: int) -> str:
    """The shapes of an operator's tensors: ``8x3x32x32, 16x3x3x3``."""
    shapes = trace.shapes_of(row) if row >= 0 else None
    return ", ".join("x".join(map(str, shape)) for shape in shapes or () if shape and is_shape(shape))


def _family(kernel: str) -> str:
    """The kernel's family where its name tells it, else the name without arguments."""
    kind = identify(kernel)
    return kind.family if kind else re.sub(r"[<(].*", "", kernel.replace("(anonymous namespace)::", ""))


def _totals(side: _Side) -> dict[str, float]:
    """Times per iteration in µs; ``host`` has operators and API calls, ``host waiting`` the synchronising ones.

    The iteration is the median, the others are means; busy and idle as in `step_table`, so together the mean iteration.
    """
    part, count, iteration_us = side
    trace = part.trace
    calls = part.trace.calls
    operators = take_rows(trace.ranges, trace.ranges.kind == events.OPERATOR)
    host = (np.append(getattr(operators, name), getattr(calls, name)) for name in ("start_ns", "end_ns"))
    steps = step_table(part).rows
    idle_us = sum(map(idle_of_step, steps)) / count
    return {
        "iteration": iteration_us,
        "device": part.total_us / count,
        "device busy": sum(step["time_us"] for step in steps) / count - idle_us,
        "device idle": idle_us,
        "host": union_us(*host) / count,
        "host waiting": float(calls.time_us[calls.kind == events.SYNC_CALL].sum()) / count,
    }
