"""A profile as one HTML file that needs nothing else, with the roofline of its kernels as inline SVG.

Everything that comes from the trace is escaped.
"""

from collections.abc import Callable
from html import escape
from math import floor, log10
from pathlib import Path

from surrogate.dataset.files import write_text
from surrogate.features.roofline import peak_tflops, ridge_flops_per_byte
from surrogate.report.page import Figure, Section, page
from surrogate.report.tables import Facts, plain
from surrogate.trace.kernels import kernel_table
from surrogate.trace.profiling import Profile
from surrogate.trace.result import ResultTable, Row
from surrogate.trace.tables import copy_table, layer_table, summary, type_table

MAX_LINES = 200
_WIDTH, _HEIGHT, _MARGIN, _RIGHT = 640.0, 380.0, 48.0, 24.0
_MAX_DOTS = 300
_FONT = 'font-size="12" fill="var(--ink)"'


def write_page(profile: Profile, path: str | Path) -> None:
    """Write `trace_page` to ``path``, whole or not at all. Raises `InputError` where that is not possible."""
    write_text(path, trace_page(profile))


def trace_page(profile: Profile) -> str:
    """Headline, summary, layer types, layers, kernels by name with a roofline figure, copies; 200 lines a table."""
    facts = summary(profile)
    kernels = kernel_table(profile)
    roofline = roofline_svg(kernels, profile)
    caption = f"Roofline of {facts['gpu']}, fp32 without tensor cores; area by total time; bytes are the least traffic."
    figures = [Figure("roofline", roofline, caption)] if roofline else []
    sections = [
        Section("Layer types", [type_table(profile).table(MAX_LINES)]),
        Section("Layers", [layer_table(profile).table(MAX_LINES)]),
        Section("Kernels", [kernels.table(MAX_LINES)], figures),
        Section("Copies and memsets", [copy_table(profile).table(MAX_LINES)]),
        Section("Summary", [Facts([(key, plain(value)) for key, value in facts.items()])]),
    ]
    return page(str(facts["trace"]), sections, kicker="profile of a trace", answer=_answer(facts))


def _answer(facts: Row) -> str:
    busy, gpu = facts["busy_pct"], facts["gpu"] or "unknown device"
    device = "no device activity"
    if busy is not None:
        device = f"the device ({gpu}) was busy {plain(busy)} % of its span"
    return f"{plain(facts['iteration_ms'])} ms per iteration ({facts['iterations']}); {device}."


def roofline_svg(kernels: ResultTable, profile: Profile) -> str:
    """A dot per kernel name (area by its time) under the fp32 roof; "" where no kernel has both rates, or no peaks."""
    dots = [row for row in kernels.rows if row.get("tflops") and row.get("flop_per_byte")][:_MAX_DOTS]
    if profile.gpu is None or not dots:
        return ""
    peak, dram = peak_tflops(profile.gpu, "fp32"), profile.gpu.dram_gbs
    ridge = ridge_flops_per_byte(peak, dram)
    intensities = [ridge, *(row["flop_per_byte"] for row in dots)]
    rates = [peak, *(row["tflops"] for row in dots)]
    x, left, right = _axis(min(intensities), max(intensities), _MARGIN, _WIDTH - _RIGHT)
    y, low, high = _axis(min(rates), max(rates), _HEIGHT - _MARGIN, 12)
    # The roof rises with the bandwidth until the ridge and is flat behind it.
    start = max(10**left, 10**low / dram * 1e3)
    corners = ((start, start * dram / 1e3), (ridge, peak), (10.0**right, peak))
    roof = "M" + " L".join(f"{x(intensity):.1f},{y(rate):.1f}" for intensity, rate in corners)
    parts = [
        f'<svg viewBox="0 0 {_WIDTH:.0f} {_HEIGHT:.0f}" role="img" aria-label="Roofline of the kernels">',
        _grid(left, right, x, horizontal=True),
        _grid(low, high, y, horizontal=False),
        f'<path d="{roof}" fill="none" stroke="var(--ink)" stroke-width="1.5"/>',
        *(_dot(row, x, y) for row in dots),
        f'<text x="{_WIDTH / 2:.0f}" y="{_HEIGHT - 8:.0f}" text-anchor="middle" {_FONT}>FLOP per DRAM byte</text>',
        f'<text x="12" y="{_HEIGHT / 2:.0f}" text-anchor="middle" {_FONT}'
        f' transform="rotate(-90 12 {_HEIGHT / 2:.0f})">TFLOP/s</text>',
        "</svg>",
    ]
    return "\n".join(parts)


def _axis(least: float, most: float, near: float, far: float) -> tuple[Callable[[float], float], int, int]:
    """(value → coordinate, lowest and highest power of ten) of a logarithmic axis."""
    low, high = floor(log10(least)), floor(log10(most)) + 1
    return lambda value: near + (log10(value) - low) / (high - low) * (far - near), low, high


def _grid(low: int, high: int, coordinate: Callable[[float], float], *, horizontal: bool) -> str:
    lines = []
    for power in range(low, high + 1):
        at, text = coordinate(10.0**power), f"{10.0**power:,.10g}"
        if horizontal:
            ends = f'x1="{at:.1f}" x2="{at:.1f}" y1="12" y2="{_HEIGHT - _MARGIN}"'
            label = f'x="{at:.1f}" y="{_HEIGHT - _MARGIN + 16}" text-anchor="middle"'
        else:
            ends = f'x1="{_MARGIN}" x2="{_WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}"'
            label = f'x="{_MARGIN - 6}" y="{at + 4:.1f}" text-anchor="end"'
        lines.append(f'<line {ends} stroke="var(--rule)"/><text {label} {_FONT}>{text}</text>')
    return "\n".join(lines)


def _dot(row: Row, x: Callable[[float], float], y: Callable[[float], float]) -> str:
    radius = 3 + (row["time_pct"] or 0.0) ** 0.5 * 2
    name = escape(f"{row['kernel']}: {row['time_pct']:.1f} % of the time, {row['bound']}")
    return (
        f'<circle cx="{x(row["flop_per_byte"]):.1f}" cy="{y(row["tflops"]):.1f}" r="{radius:.1f}"'
        f' fill="var(--blue)" fill-opacity="0.6"><title>{name}</title></circle>'
    )
