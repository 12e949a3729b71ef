"""The page of a profile: one HTML file that needs no other file, with the step's bound, charts and all tables.

All text from the trace is escaped.
"""

from dataclasses import replace
from itertools import count

import numpy as np
import pandas as pd
from markupsafe import Markup

from surrogate.features.errors import read_toml
from surrogate.features.roofline import ridge_flops_per_byte
from surrogate.report.page import ZOOM, Figure, Section, lanes_chart, page
from surrogate.report.style import BLUE, INK, blank, number_tick, svg, theme
from surrogate.report.tables import FactTable, Table, format_number, format_value, interval_us
from surrogate.trace.events.parts import OUTSIDE, iteration_at
from surrogate.trace.events.tables import linked
from surrogate.trace.findings import find_all, format_findings, is_judged
from surrogate.trace.graph import graph_of
from surrogate.trace.idle import idle_table
from surrogate.trace.kernels import COMMUNICATION, kernel_table
from surrogate.trace.labels import label_table
from surrogate.trace.profiling import NO_DEVICE, Profile, steady
from surrogate.trace.result import ResultTable, Row, deduplicated, short_names
from surrogate.trace.tables import STEP_PARTS, copy_table, headline, layer_table, step_table, summary, type_table
from surrogate.trace.whatif import WHAT_IF_RULES, WhatIfSetting, evaluate, what_if

TEXTS = read_toml(__file__)
"""The what-ifs that need no information besides the trace, and the captions of charts."""
MAX_LINES = 200
_MAX_STEPS = 12
_OTHER_TYPES = 8
"""Number of layer types with a fill of their own, and the fill of all other types."""
_MAX_DOTS = 30


def trace_page(profile: Profile) -> str:
    """Return the page: the steps' bound, findings, layers over time, what-ifs, a roofline, then all tables.

    A table has at most 200 lines.
    """
    profile = steady(profile)
    facts, steps, kernels, layers = summary(profile), step_table(profile), kernel_table(profile), layer_table(profile)
    roofline = roofline_svg(kernels, profile)
    figures = [Figure("roofline", roofline, TEXTS["roofline"].format(facts["gpu"]))] if roofline else []
    idle, labels, has_bound = idle_table(profile), label_table(profile), bool(facts["bound"])
    tables = {
        **({"Labels": labels} if len(labels) else {}),
        **{"Kernels": kernels, "Layer types": type_table(profile)},
        "Layers": replace(layers, rows=tuple(sorted(layers.rows, key=lambda row: -row["total_us"]))),
        **{"Copies and memsets": copy_table(profile), "Iterations": steps},
    }
    sections = [
        Section("What bounds the step", [_step_chart(steps)] if has_bound else []),
        Section("Why the device is idle", [idle.table(MAX_LINES)] if len(idle) else []),
        Section("What to change", _advice(profile) if has_bound else []),
        Section("Layers over time", [_layer_chart(profile)]),
        Section("What-ifs", _what_ifs(profile) if has_bound else []),
        Section("Roofline", [], figures),
        *(Section(title, [table.table(MAX_LINES)]) for title, table in tables.items()),
        Section("Summary", [FactTable([(key, format_value(value)) for key, value in facts.items()])]),
    ]
    return page(str(facts["trace"]), sections, kicker="profile of a trace", answer=_answer(facts))


def _advice(profile: Profile) -> list[Table | str]:
    """Return the findings, the basis of their intervals, and the causes that were not checked."""
    findings, unchecked = find_all(profile)
    if not findings:
        return [format_findings(findings, unchecked, evaluated=is_judged(profile))]
    bases = deduplicated((finding.title, finding.basis) for finding in findings)
    rows = [finding.row() for finding in findings]
    return [Table(rows, title="Gains do not add up", notes=(*bases, *filter(None, [unchecked])))]


def _what_ifs(profile: Profile) -> list[Table]:
    """Return the answers to the what-ifs of the page that apply, with times and the evidence of the error."""
    refusals: dict[str, str] = {}
    chosen = [what_if(name) for name in TEXTS["what_ifs"]]
    answers = evaluate(graph_of(profile.trace, profile.layers), chosen, WhatIfSetting(profile), refusals=refusals)
    rows = []
    for answer in answers:
        ends = [end / 1e3 for end in (answer.low_us, answer.high_us) if end is not None]
        interval = interval_us((ends[0], ends[1]), between=" to ") if ends else "–"
        times = {"before_ms": answer.baseline_us / 1e3, "after_ms": answer.predicted_us / 1e3, "interval_ms": interval}
        gain = {"throughput": f"{format_value(answer.speedup)}×", "bound after": answer.to_dict()["bound_after"]}
        texts = {"help": WHAT_IF_RULES[answer.name].help, "assumes": answer.assumes}
        rows.append({"what-if": answer.name, **times, **gain, **texts})
    notes = [f"{name} does not apply: {reason.removeprefix(f'{name}: ')}" for name, reason in refusals.items()]
    notes += deduplicated((answer.name, answer.evidence) for answer in answers)
    return [Table(rows, title="An iteration's time", notes=tuple(notes), empty="None applies.")]


def _answer(facts: Row) -> str:
    device = f"the trace {NO_DEVICE}"
    if facts["busy_pct"] is not None:
        gpu, busy = facts["gpu"] or "unknown device", format_value(facts["busy_pct"])
        device = f"the device ({gpu}) was busy {busy} % of the iterations' time"
    times = f"{format_value(facts['iteration_ms'])} ms per iteration ({facts['iterations']}); {device}."
    return ".\n".join(filter(None, [headline(facts), times]))


def _step_chart(steps: ResultTable) -> Markup:
    """Return a chart with a lane per iteration: its parts in the order of `STEP_PARTS`."""
    rows = steps.rows[:_MAX_STEPS]
    lanes = {}
    for row in rows:
        times = [row[name] for name in STEP_PARTS]
        shares = [f"{100 * time / row['time_us']:.0f} %" for time in times]
        bars = zip(np.cumsum([0.0, *times[:-1]]).tolist(), times, count(), shares, STEP_PARTS.values(), strict=False)
        lanes[f"{row['iteration']}, {row['time_us'] / 1e3:.3f} ms"] = [bar for bar in bars if bar[1]]
    first = f"The first {len(rows)} of {len(steps)} iterations. " if len(steps) > len(rows) else ""
    caption = f"{first}The device's time in each iteration; {'; '.join(steps.notes)}."
    legend, longest_us = dict(enumerate(STEP_PARTS.values())), max(row["time_us"] for row in rows)
    return lanes_chart("steps", caption, lanes, legend, longest_us)


def _layer_chart(profile: Profile) -> Markup:
    """Return a chart of an iteration's layers over time: host threads above, streams of the device below.

    The iteration is the one with the median time. Bars of a lane that begin in the same 4,000th of it become one bar.
    """
    trace, layers, iterations = profile.trace, profile.layers, profile.layers.iterations
    ranges, activities, of_range = trace.ranges, trace.activities, layers.of_range
    chosen = int(np.argsort([iteration.time_us for iteration in iterations])[len(iterations) // 2])
    iteration = iterations[chosen]
    outermost = (of_range >= 0) & (linked(of_range, ranges.parent) != of_range)
    host = outermost & (iteration_at(iterations, ranges.start_ns) == chosen)
    threads = [thread.name or f"host thread {thread.thread}" for thread in trace.threads]
    streams = [stream.label for stream in trace.streams]
    device = (activities, layers.iteration_of_activity == chosen, layers.of_activity, streams, activities.stream)
    lanes = ((ranges, host, of_range, threads, ranges.thread), device)
    frames = []
    for table, rows, of_layer, labels, lane in lanes:
        texts = {"type": (layers.type, of_layer), "layer": (layers.name, of_layer)}
        texts |= {"name": (trace.names, table.name), "lane": (labels, lane)}
        columns = {name: np.array([*each, OUTSIDE], object)[index[rows]] for name, (each, index) in texts.items()}
        start_us = (table.start_ns[rows] - iteration.start_ns) / 1e3
        frames.append(pd.DataFrame({"start": start_us, "time": table.time_us[rows], **columns}))
    on_device = frames[1]
    bars = pd.concat(frames, ignore_index=True)
    bars["end"] = bars["start"] + bars["time"]
    length_us = max(iteration.time_us, bars["end"].max())
    longest_types = on_device.groupby("type")["time"].sum().nlargest(_OTHER_TYPES).index
    legend = dict(enumerate(longest_types)) | {_OTHER_TYPES: "other types"}
    bars["fill"] = bars["type"].map({name: fill for fill, name in legend.items()}).fillna(_OTHER_TYPES).astype(int)
    short = short_names(on_device["name"])
    bars["title"] = bars["layer"] + ": " + pd.Series([short.get(str(name), str(name)) for name in bars["name"]])
    bars["lane"] = pd.Categorical(bars["lane"], bars["lane"].unique())
    # Merge bars that begin at the same place; the longest one gives the fill and the texts.
    bars["bin"] = 4000 * bars["start"] // length_us
    longest_first = bars.sort_values("time", ascending=False).groupby(["lane", "bin"], observed=True)
    drawn = longest_first.agg({"start": "min", "end": "max", "fill": "first", "layer": "first", "title": "first"})
    drawn["end"] -= drawn["start"]
    by_lane = {
        str(lane): list(group.itertuples(index=False, name=None))
        for lane, group in drawn.set_axis(drawn.index.get_level_values("lane")).groupby(level=0, observed=True)
    }
    caption = TEXTS["layers"].format(iteration.label, format_number(iteration.time_us / 1e3))
    return lanes_chart("layers-over-time", caption, by_lane, legend, length_us, ZOOM)


def roofline_svg(kernels: ResultTable, profile: Profile) -> str:
    """Return a roofline plot of the kernels with the most time: a dot per name, the area by its time.

    The roofs are the peaks of the kernels' compute units. Return "" if no kernel has both rates, or there are no peaks.
    """
    rows = [row for row in kernels.rows if row["tflops"] and row["flop_per_byte"] and row["bound"] != COMMUNICATION]
    dots = rows[:_MAX_DOTS]
    if profile.gpu is None or not dots:
        return ""
    units = {round(100 * row["tflops"] / row["compute_pct"], 3): row["unit"] for row in reversed(dots)}
    peaks = sorted(units, reverse=True)
    ridges = [ridge_flops_per_byte(peak, profile.gpu.dram_gbs) for peak in peaks]
    intensities, rates = ([row[column] for row in dots] for column in ("flop_per_byte", "tflops"))
    lowest = min([*ridges, *intensities]) / 2
    highest = max([*ridges, *intensities]) * 16
    with theme():
        figure, (axis,) = blank(3.6)
        # A roof rises with the bandwidth up to its ridge, and is flat after it.
        for peak, ridge in zip(peaks, ridges, strict=True):
            axis.loglog([lowest, ridge, highest], [lowest * profile.gpu.dram_gbs / 1e3, peak, peak], color=INK)
            side = "bottom" if peak == peaks[0] else "top"
            axis.annotate(f"{units[peak]} {format_value(peak)}", (highest, peak), ha="right", va=side)
        axis.scatter(intensities, rates, [20 + 20 * row["time_pct"] for row in dots], color=BLUE, alpha=0.6)
        axis.set_xlabel("FLOP per DRAM byte")
        axis.set_ylabel("TFLOP/s")
        axis.xaxis.set_major_formatter(number_tick)
        axis.yaxis.set_major_formatter(number_tick)
        return svg(figure)
