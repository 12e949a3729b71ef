"""A profile as one HTML file that needs nothing else; everything that comes from the trace is escaped."""

from dataclasses import replace
from pathlib import Path

from surrogate.dataset.files import write_text
from surrogate.report.page import Figure, Section, page
from surrogate.report.tables import Facts, Table
from surrogate.trace.copies import copy_table
from surrogate.trace.kernels import kernel_table
from surrogate.trace.layer_times import layer_table, type_table
from surrogate.trace.overview import summary
from surrogate.trace.profiling import Profile
from surrogate.trace.result import Rows, show
from surrogate.trace.roofline_figure import roofline_svg

MAX_LINES = 200


def write_page(profile: Profile, path: str | Path) -> None:
    """Write `trace_page` to ``path``, whole or not at all. Raises `InputError` where that is not possible."""
    write_text(path, trace_page(profile))


def trace_page(profile: Profile) -> str:
    """Headline, summary, layer types, layers, kernels by name with a roofline figure, copies; 200 lines a table."""
    facts = summary(profile)
    kernels = kernel_table(profile)
    roofline = roofline_svg(kernels, profile)
    caption = f"Roofline of {facts['gpu']}, fp32 without tensor cores; area by total time; bytes are the least traffic."
    sections = [
        Section("Layer types", [_table(type_table(profile))]),
        Section("Layers", [_table(layer_table(profile))]),
        Section("Kernels", [_table(kernels)], [Figure("roofline", roofline, caption)] if roofline else []),
        Section("Copies and memsets", [_table(copy_table(profile))]),
        Section("Summary", [Facts([(key, show(value)) for key, value in facts.items()])]),
    ]
    return page(str(facts["trace"]), sections, kicker="profile of a trace", answer=_answer(facts))


def _answer(facts: dict[str, object]) -> str:
    busy, gpu = facts["busy_pct"], facts["gpu"] or "unknown device"
    device = (
        f"the device ({gpu}) was busy {show(busy)} % of its span"
        if busy is not None
        else "no device activity"
    )
    return f"{show(facts['iteration_ms'])} ms per iteration ({facts['iterations']}); {device}."


def _table(rows: Rows) -> Table:
    more = f"first {MAX_LINES} of {len(rows):,}" if len(rows) > MAX_LINES else ""
    note = "; ".join(text for text in (more, *rows.notes) if text)
    return replace(rows.top(MAX_LINES).table(), note=note, notes=(), empty="None in this trace.")
