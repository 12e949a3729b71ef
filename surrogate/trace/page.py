"""A profile as one HTML file that needs nothing else, with the roofline of its kernels as inline SVG.

Everything that comes from the trace is escaped.
"""

from surrogate.features.roofline import peak_tflops, ridge_flops_per_byte
from surrogate.report.page import Figure, Section, page
from surrogate.report.style import BLUE, INK, blank, plain_tick, svg, theme
from surrogate.report.tables import Facts, plain
from surrogate.trace.kernels import kernel_table
from surrogate.trace.profiling import Profile
from surrogate.trace.result import ResultTable, Row
from surrogate.trace.tables import copy_table, layer_table, summary, type_table

MAX_LINES = 200
_MAX_DOTS = 300


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
    intensities, rates = ([row[column] for row in dots] for column in ("flop_per_byte", "tflops"))
    lowest, highest = min([ridge, *intensities]) / 2, max([ridge, *intensities]) * 2
    with theme():
        figure, (axis,) = blank(3.6)
        # The roof rises with the bandwidth until the ridge and is flat behind it.
        axis.loglog([lowest, ridge, highest], [lowest * dram / 1e3, peak, peak], color=INK)
        axis.scatter(intensities, rates, [20 + 20 * row["time_pct"] for row in dots], color=BLUE, alpha=0.6)
        axis.set_xlabel("FLOP per DRAM byte")
        axis.set_ylabel("TFLOP/s")
        axis.xaxis.set_major_formatter(plain_tick)
        axis.yaxis.set_major_formatter(plain_tick)
        return svg(figure)
