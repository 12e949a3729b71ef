"""Compare two traces of one program: device time by layer, type, label, operator or kernel, before and after.

All figures are per iteration, so traces of different lengths are comparable. Rows are matched in stages, from the same
name and shape to similar names. Rows of only one trace are listed, too, so the changes of all rows add up to the change
of the device time.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from surrogate.features.errors import check_choice, read_toml
from surrogate.features.kernels import kernel_family
from surrogate.report.tables import format_number, shortened
from surrogate.trace import events
from surrogate.trace.calls import is_shape
from surrogate.trace.events.parts import iterations as find_iterations, steady_run, trim
from surrogate.trace.events.read import as_trace
from surrogate.trace.events.tables import Trace, enclosing, linked, take_rows
from surrogate.trace.graph.build import shared_graph
from surrogate.trace.graph.tasks import MIN_LAG_SHARE, simulate
from surrogate.trace.idle import blocking_calls, idle_table
from surrogate.trace.labels import find_labels
from surrogate.trace.profiling import NO_DEVICE, Profile, invalid_reason, profile, union_us
from surrogate.trace.result import MAX_NAME_LENGTH, Row
from surrogate.trace.tables import idle_of_step, step_table

LEVELS, _IDENTIFYING = read_toml(__file__).values()
"""Kind of rows → the stages that match them, with the columns that must agree; and the stages that identify a program.

Other stages match in any two programs, because every program has convolutions and additions.
"""
MIN_MATCHED_PCT = 5.0
"""The minimum share of device time, in percent, in matched rows; below it, the programs are not the same."""
MIN_IDLE_CHANGE = 0.01
"""The minimum change of a cause of idle time, as a share of an iteration, for a note."""
_OPERATOR = re.compile(r"(?!autograd::engine|Compiled).*(?:::|Backward\d*$)")
_LIBRARY = re.compile(r"(?:cudnn|miopen|native)_?|\d+$", re.IGNORECASE)
"""The parts in which names of the same operator differ between vendors' GPUs and between versions of PyTorch."""


@dataclass(frozen=True, slots=True)
class TraceDiff:
    """The difference of two traces; A is before, B is after. Times are in µs per iteration.

    Attributes
    ----------
    by
        The kind of rows (`LEVELS`).
    matched_pct
        The matched share of A's and of B's device time, in percent.
    stages
        The same by stage.
    totals
        Iteration, device and host times.
    rows
        Device times, the largest change first. ``ratio`` is after divided by before, ``calls`` the number per iteration
        that launched device work, ``match`` the stage that matched the row.
    notes
        Remarks for the user.
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
    """Compare the device times of two traces; the largest change comes first.

    Operators are the outermost ones, with their shapes. If less than half of both traces matches by name and shape, as
    with different programs, the first note says so.

    Parameters
    ----------
    before, after : Trace, str or Path
        The traces, or their files.
    by : {"layer", "type", "label", "operator", "kernel"}, optional
        The kind of rows. By default, operator, type and kernel are compared, and the kind with the largest matched
        share of the time, rounded to 10 %, is used. If shares are equal, the first kind is used.
    iterations : pair of sequences of int
        Indices of the counted iterations of each trace; by default from `steady_run`. Other iterations are ignored.

    Returns
    -------
    TraceDiff

    Raises
    ------
    InputError
        If the level is unknown, an iteration is not in the trace, a trace has no device activity, or less than
        `MIN_MATCHED_PCT` of the time of one trace matches.
    """
    before, after = map(as_trace, (before, after))
    sides = [_side(trace, requested) for trace, requested in zip((before, after), iterations, strict=True)]
    answers = [_compared(sides, level) for level in ((by,) if by else ("operator", "type", "kernel"))]
    best = max(answers, key=lambda answer: round(min(answer.matched_pct), -1))
    if min(best.matched_pct) < MIN_MATCHED_PCT:
        raise events.refusal("too_few_match", before=before.source, after=after.source, matched=best.notes[0])
    identified_pct = [[answer.stages[stage] for stage in _IDENTIFYING.get(answer.by, ())] for answer in answers]
    if not by and max(max(map(sum, zip(*stages, strict=True)), default=0.0) for stages in identified_pct) < 50:
        return replace(best, notes=(events.text("different"), *best.notes))
    return best


def _side(trace: Trace, requested: Sequence[int]) -> Profile:
    """Return the profile of the counted iterations."""
    kept, note = steady_run(find_iterations(trace))
    indices = requested or [iteration.index for iteration in kept]
    part = replace(profile(trim(trace, iterations_kept=indices)), left_out="" if requested else note)
    if not len(part.trace.activities):
        raise events.refusal("no_device", source=trace.source, reason=NO_DEVICE)
    return part


def _compared(sides: Sequence[Profile], by: str) -> TraceDiff:
    """Compare both sides at one level, stage by stage. The next stage gets the rows that did not match."""
    check_choice("level", by, tuple(LEVELS))
    # Each stage makes a row for every key of both sides; the last stage, "", has the keys of one side only.
    left = [_items(part, by) for part in sides]
    parts = []
    for match, columns in {**LEVELS[by], "": "name shape"}.items():
        sums = [_summed(items, columns.split()) for items in left]
        both = sums[0].add_suffix("_before").join(sums[1].add_suffix("_after"), how="inner" if match else "outer")
        parts.append(both.assign(match=match))
        left = [items[~items["key"].isin(both.index)].copy() for items in left]
    table = pd.concat(parts)
    matched = table[table["match"] != ""]
    us, calls = ["us_before", "us_after"], ["calls_before", "calls_after"]
    names = {by: "name", "shape": "shape"} if "shape" in LEVELS[by] else {by: "name"}
    rows: list[Row] = [
        {name: _both(row[f"{column}_before"], row[f"{column}_after"]) for name, column in names.items()}
        | _change(*(row[name] for name in us))
        | {name: row[name] for name in calls}
        | {"match": row["match"] or ("only A" if row["calls_before"] else "only B")}
        for row in table.fillna(dict.fromkeys([*us, *calls], 0.0)).to_dict("records")  # 0 for a side without the row
    ]
    rows.sort(key=lambda row: (-abs(row["change_us"]), -row["before_us"]))
    # Shape (stages, 2): the shares of both sides' times that each stage matches.
    stages = 100 * table.groupby("match")[us].sum().reindex(list(LEVELS[by]), fill_value=0.0) / table[us].sum()
    shares = {match: tuple(stages.loc[match].fillna(0.0).tolist()) for match in stages.index}
    matched_pct = tuple(map(sum, zip(*shares.values(), strict=True)))
    each = ["by {} {:.3g} and {:.3g} %".format(match, *both) for match, both in shares.items() if max(both) >= 0.5]
    notes = [events.text("matched", *matched_pct, by)]
    notes[0] += f" ({'; '.join(each)})" if each else ""
    called = matched[calls].sum().tolist()
    if max(called) > 1.5 * min(called):
        notes.append(events.text("calls_differ", *map(format_number, called)))
    before, after = map(_totals, sides)
    idle_us = pd.DataFrame([_idle_us(part) for part in sides]).fillna(0.0).T
    change_us = (idle_us[1] - idle_us[0]).abs()
    if change_us.max() > max(MIN_IDLE_CHANGE * before["iteration"], *(abs(row["change_us"]) for row in rows[:1])):
        cause = str(change_us.idxmax())
        notes.append(events.text("idle_changed", shortened(cause, 2 * MAX_NAME_LENGTH), *idle_us.loc[cause]))
    totals = tuple({"total": name, **_change(time_us, after[name])} for name, time_us in before.items())
    notes += [f"{part.trace.source}: {part.left_out}" for part in sides if part.left_out]
    return TraceDiff(by, matched_pct, shares, totals, tuple(rows), tuple(notes))


def _both(before: object, after: object) -> str:
    """Return one text for both sides; one of them may be missing."""
    return " → ".join(dict.fromkeys(text for text in (before, after) if isinstance(text, str) and text))


def _change(before_us: float, after_us: float) -> Row:
    ratio = after_us / before_us if before_us else None
    change = {"change_us": after_us - before_us, "change_pct": None if ratio is None else 100 * (ratio - 1)}
    return {"before_us": before_us, "after_us": after_us, **change, "ratio": ratio}


def _summed(items: pd.DataFrame, columns: list[str]) -> pd.DataFrame:
    """Return the sums of the items by ``columns``, which become their ``key``.

    ``nth`` is the position of an item in its group of equal items, ``count`` the size of the group.
    """

    def several(texts: pd.Series) -> str:
        different = texts.unique()
        return different[0] if len(different) < 2 else f"{different[0]} and {len(different) - 1} more"

    groups = items.groupby([column for column in columns if column not in ("count", "nth")])
    items["nth"] = groups.cumcount()
    items["count"] = groups["us"].transform("size")
    items["key"] = list(items[columns].itertuples(index=False, name=None))
    return items.groupby("key", sort=False).agg({"name": several, "shape": several, "us": "sum", "calls": "sum"})


def _items(part: Profile, by: str) -> pd.DataFrame:
    """Return device time in µs and calls per iteration by name and shape, in the order of first use."""
    trace, layers, ranges = part.trace, part.layers, part.trace.ranges
    names = np.array(trace.names, dtype=object)
    kernel = names[trace.activities.name]
    is_operator = (ranges.kind == events.OPERATOR) & trace.name_matches(ranges, _OPERATOR.match)
    around = linked(enclosing(ranges, is_operator, outermost=True), trace.activities.range)
    operator = np.where(around >= 0, linked(names[ranges.name], around, ""), kernel)
    shapes = {row: _shapes(trace, row) for row in np.unique(around).tolist()}
    stem = [_LIBRARY.sub("", name) if row >= 0 else _family(name) for name, row in zip(operator, around, strict=True)]
    shape = list(map(shapes.get, around.tolist()))
    table = pd.DataFrame({"name": operator, "stem": stem, "shape": shape, "family": ""})
    if by == "kernel":
        stem = np.where(around >= 0, table["stem"], kernel)
        table = table.assign(name=kernel, stem=stem, shape="", family=list(map(_family, kernel)))
        around = np.arange(len(kernel))
    elif by == "label":
        found = find_labels(trace)
        if not len(found):
            raise events.refusal("no_labels", source=trace.source)
        around = found.of_activity
        name = np.array(found.names, dtype=object)[found.name[around]]
        table = table.assign(name=name, stem=name, shape="")
    elif by != "operator":
        around = layers.of_activity
        types = [text.lower().replace("_", "") for text in layers.type]
        for column, texts in (("stem", types), ("name", layers.name if by == "layer" else layers.type)):
            table[column] = np.where(around >= 0, np.array([*texts, ""], dtype=object)[around], table[column])
        table["shape"] = table.groupby("name")["shape"].transform("first") if by == "layer" else ""
    # Launches outside layers are listed by operator or kernel; each is one call.
    table["calls"] = np.where(around >= 0, around, -1 - np.arange(len(around)))
    groups = table.assign(us=trace.activities.time_us).groupby(["name", "shape"], sort=False)
    items = groups.agg({"stem": "first", "family": "first", "us": "sum", "calls": "nunique"}).reset_index()
    count = len(layers.iterations)
    return items.assign(us=items["us"] / count, calls=items["calls"] / count)


def _shapes(trace: Trace, row: int) -> str:
    """Return the shapes of an operator's tensors as text: ``8x3x32x32, 16x3x3x3``."""
    shapes = trace.shapes_of(row) if row >= 0 else None
    return ", ".join("x".join(map(str, shape)) for shape in shapes or () if shape and is_shape(shape))


def _family(kernel: str) -> str:
    """Return the kernel's family if its name determines one, else the name without arguments."""
    return kernel_family(kernel) or re.sub(r"[<(].*", "", kernel.replace("(anonymous namespace)::", ""))


def _idle_us(part: Profile) -> dict[str, float]:
    """Return cause and name → idle time of the device in µs per iteration."""
    return {f"{row['cause']}, {row['name']}": row["per_iteration_us"] for row in idle_table(part)}


def _totals(part: Profile) -> dict[str, float]:
    """Return times per iteration in µs.

    ``host`` counts operators and API calls, ``host waiting`` those that block. The iteration is the median, the
    others are means. Busy and idle times come from `step_table`; they add up to the mean iteration. If the host runs
    ahead of the device, the iteration is a step of the device (`Timeline.per_iteration_us`), and so are these times.
    """
    calls, blocks = part.trace.calls, blocking_calls(part.trace)
    times_us = [iteration.time_us for iteration in part.layers.iterations]
    count = len(times_us)
    operators = take_rows(part.trace.ranges, part.trace.ranges.kind == events.OPERATOR)
    host = (np.append(getattr(operators, name), getattr(calls, name)) for name in ("start_ns", "end_ns"))
    idle_us = sum(map(idle_of_step, step_table(part))) / count
    iteration_us, busy_us = float(np.median(times_us)), sum(times_us) / count - idle_us
    timeline = None if invalid_reason(part.trace) else simulate(shared_graph(part.trace, part.layers))
    if timeline and sum(times_us) / count < (1 - MIN_LAG_SHARE) * timeline.per_iteration_us:
        iteration_us, rows = timeline.per_iteration_us, part.layers.iteration_of_activity >= 0
        activities = take_rows(part.trace.activities, np.flatnonzero(rows & (part.device_of == part.device)))
        busy_us = min(union_us(activities.start_ns, activities.end_ns) / count, iteration_us)
        idle_us = iteration_us - busy_us
    return {
        "iteration": iteration_us,
        "device": part.total_us / count,
        "device busy": busy_us,
        "device idle": idle_us,
        "host": union_us(*host) / count,
        "host waiting": float(calls.time_us[blocks].sum()) / count,
    }
