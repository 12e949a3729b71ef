"""The roofline of a trace's kernels as inline SVG: rate over arithmetic intensity, both logarithmic."""

from collections.abc import Callable
from html import escape
from math import floor, log10

from surrogate.features.roofline import peak_tflops, ridge_flops_per_byte
from surrogate.trace.profiling import Profile
from surrogate.trace.result import Row, Rows

_WIDTH, _HEIGHT, _MARGIN, _RIGHT = 640.0, 380.0, 48.0, 24.0
_MAX_DOTS = 300


def roofline_svg(kernels: Rows, profile: Profile) -> str:
    """A dot per kernel name (area by its time) under the fp32 roof; "" where no kernel has both rates, or no peaks."""
    dots = [r for r in kernels.rows if r.get("tflops") and r.get("flop_per_byte")][:_MAX_DOTS]
    if profile.gpu is None or not dots:
        return ""
    peak, dram = peak_tflops(profile.gpu, "fp32"), profile.gpu.dram_gbs
    ridge = ridge_flops_per_byte(peak, dram)
    intensities = [ridge, *(r["flop_per_byte"] for r in dots)]
    rates = [peak, *(r["tflops"] for r in dots)]
    x, left, right = _axis(min(intensities), max(intensities), _MARGIN, _WIDTH - _RIGHT)
    y, low, _ = _axis(min(rates), max(rates), _HEIGHT - _MARGIN, 12)
    start = max(10**left, 10**low / dram * 1e3)
    corners = ((start, start * dram / 1e3), (ridge, peak), (10.0**right, peak))
    roof = "M" + " L".join(f"{x(at):.1f},{y(rate):.1f}" for at, rate in corners)
    parts = [
        f'<svg viewBox="0 0 {_WIDTH:.0f} {_HEIGHT:.0f}" role="img" aria-label="Roofline of the kernels">',
        _grid(left, right, x, horizontal=True),
        _grid(low, _power_above(max(rates)), y, horizontal=False),
        f'<path d="{roof}" fill="none" stroke="var(--ink)" stroke-width="1.5"/>',
        *(_dot(row, x, y) for row in dots),
        f'<text x="{_WIDTH / 2:.0f}" y="{_HEIGHT - 8:.0f}" text-anchor="middle" {_FONT}>FLOP per DRAM byte</text>',
        f'<text x="12" y="{_HEIGHT / 2:.0f}" text-anchor="middle" {_FONT}'
        f' transform="rotate(-90 12 {_HEIGHT / 2:.0f})">TFLOP/s</text>',
        "</svg>",
    ]
    return "\n".join(parts)


_FONT = 'font-size="12" fill="var(--ink)"'


def _axis(least: float, most: float, near: float, far: float) -> tuple[Callable[[float], float], int, int]:
    """(value → coordinate, lowest and highest power of ten)."""
    low, high = floor(log10(least)), _power_above(most)

    def place(value: float) -> float:
        return near + (log10(value) - low) / max(high - low, 1) * (far - near)

    return place, low, high


def _power_above(value: float) -> int:
    return floor(log10(value)) + 1


def _grid(low: int, high: int, place: Callable[[float], float], *, horizontal: bool) -> str:
    lines = []
    for power in range(low, high + 1):
        at, text = place(10.0**power), f"{10.0**power:,.10g}"
        if horizontal:
            lines.append(
                f'<line x1="{at:.1f}" x2="{at:.1f}" y1="12" y2="{_HEIGHT - _MARGIN}" stroke="var(--rule)"/>'
                f'<text x="{at:.1f}" y="{_HEIGHT - _MARGIN + 16}" text-anchor="middle" {_FONT}>{text}</text>'
            )
        else:
            lines.append(
                f'<line x1="{_MARGIN}" x2="{_WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}" stroke="var(--rule)"/>'
                f'<text x="{_MARGIN - 6}" y="{at + 4:.1f}" text-anchor="end" {_FONT}>{text}</text>'
            )
    return "\n".join(lines)


def _dot(row: Row, x: Callable[[float], float], y: Callable[[float], float]) -> str:
    radius = 3 + (row["time_pct"] or 0.0) ** 0.5 * 2
    name = escape(f"{row['kernel']}: {row['time_pct']:.1f} % of the time, {row['bound']}")
    return (
        f'<circle cx="{x(row["flop_per_byte"]):.1f}" cy="{y(row["tflops"]):.1f}" r="{radius:.1f}"'
        f' fill="var(--blue)" fill-opacity="0.6"><title>{name}</title></circle>'
    )
