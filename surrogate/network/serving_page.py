"""A server's search as one HTML page: the best configurations, and what more speed for a user costs in throughput."""

from collections.abc import Sequence

from surrogate.network.serving_search import ServerRow, Serving, named, pareto
from surrogate.report.page import Figure, Section, page
from surrogate.report.style import blank, legend, looks, number_axes, svg, theme
from surrogate.report.tables import Table

FRONT = (
    "Each dot is a configuration that fits; the line joins those of a GPU that no other of its own beats in both. To"
    " the right a user reads faster, upward a GPU serves more."
)
UNFOLDED = 25


def pareto_figure(rows: Sequence[ServerRow]) -> str | None:
    """Tokens a second and GPU over tokens a second and user, a series for each GPU, as SVG; None where nothing fits."""
    fitting = [row for row in rows if row.fits]
    names = list(dict.fromkeys(row.gpu for row in fitting))
    if not names:
        return None
    look = looks(names)
    with theme():
        figure, (axis,) = blank(3.2)
        lines = []
        for name in names:
            own = [row for row in fitting if row.gpu == name]
            points = [(row.tokens_per_s_per_user, row.tokens_per_s_per_gpu) for row in own]
            front = [(row.tokens_per_s_per_user, row.tokens_per_s_per_gpu) for row in pareto(own)]
            axis.plot(*zip(*points, strict=True), ".", color=look[name].colour, alpha=0.25, markersize=2)
            lines += axis.plot(*zip(*front, strict=True), **look[name].line, markersize=3)
        axis.set_xscale("log")
        axis.set_yscale("log")
        number_axes(axis.xaxis, axis.yaxis)
        axis.set(xlabel="tokens/s and user, log scale", ylabel="tokens/s and GPU, log scale")
        legend(figure, lines, names)
        return svg(figure)


def serving_page(serving: Serving) -> str:
    """The whole page; all texts are escaped."""
    best, drawn = serving.best, pareto_figure(serving.rows)
    table = serving.table(len(serving.rows))
    verdict = f"{serving.verdict[:1].upper()}{serving.verdict[1:]}." if serving.verdict else ""
    answer = verdict
    if best:
        further = f", {best.tpot_ms:.1f} ms per further one" if serving.load.output > 1 else ""
        answer = (
            f"{named(best)}: {best.ttft_ms:.0f} ms to the first token{further},"
            f" {best.tokens_per_s_per_gpu:.0f} tokens per second and GPU. {serving.others} may be as good. {verdict}"
        )
    sections = [
        Section("Speed for a user against throughput", [], [Figure("pareto", drawn, FRONT)] if drawn else []),
        Section("Configurations", [Table(table.records, table.formats, unfolded=UNFOLDED)]),
        Section("What to know", list(serving.notes)),
    ]
    title = f"{serving.model}, {serving.load.input} + {serving.load.output} tokens"
    return page(title, sections, kicker="servers of a language model", answer=answer)
