"""Laws of collectives: time against message size, fitted on collectives that were measured without their waits."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from surrogate.features.operators import Collective, CollectiveLaw

Laws = Mapping[str, CollectiveLaw]
"""Kind of collective (``all_reduce``, ``all_to_all``, …) → its law."""
CURVE_FROM = 8
"""Message sizes between latency and full bandwidth from which their curve of four parameters is fitted."""
RISING, SATURATED = 1.1, 0.95
"""Latency alone holds up to this multiple of the shortest time, the full bandwidth from this share of the highest."""


def law_us(laws: Laws, problem: Collective) -> float | None:
    """The law's time in µs; None where the kind has no law."""
    law = laws.get(problem.kind)
    return None if law is None else float(law.time_us(problem.dram_bytes, problem.factor))


def fit_law(problems: Sequence[Collective], time_us: Sequence[float]) -> CollectiveLaw:
    """The law of one kind from collectives of two sizes at least and their times in µs.

    Few sizes make overhead + bytes · factor / bandwidth, by least squares of relative errors; many make the three parts
    of Lin et al. (TPDS 2024), with a curve between latency and full bandwidth.
    """
    from scipy.optimize import curve_fit, nnls

    times, x = np.array(time_us), np.log2([float(problem.dram_bytes) for problem in problems])
    moved = np.exp2(x) * [float(problem.factor) for problem in problems] / 1e3  # over GB/s this makes µs
    (overhead, per_gbs), _ = nnls(np.stack([1 / times, moved / times], axis=1), np.ones(len(times)))
    rate = moved / times
    short, full = times <= RISING * times.min(), rate >= SATURATED * rate.max()
    straight = CollectiveLaw(
        overhead_us=float(overhead), max_gbs=1 / max(float(per_gbs), 1e-6), a=0.0, c=0.0, l=0.0, k=0.0, x0=0.0, b=0.0
    )
    a, c = float(x[short].max()), float(x[~full].max(initial=0.0))
    between = (x > a) & (x <= c)
    if len(np.unique(x[between])) < CURVE_FROM:
        return straight
    known, first = np.log10(rate[between]), (1.0, 1.0, float(np.median(x[between])), float(np.log10(rate.min())))
    fit, _ = curve_fit(lambda x, l, k, x0, b: l / (1 + np.exp(-k * (x - x0))) + b, x[between], known, first)  # noqa: E741
    curve = dict(zip(("l", "k", "x0", "b"), fit.tolist(), strict=True))
    return replace(straight, overhead_us=float(times.min()), max_gbs=float(rate.max()), a=a, c=c, **curve)


def fit_laws(problems: Sequence[Collective], time_us: Sequence[float]) -> dict[str, CollectiveLaw]:
    """A law for every kind with two message sizes at least."""
    laws = {}
    for kind in dict.fromkeys(problem.kind for problem in problems):
        rows = [row for row, problem in enumerate(problems) if problem.kind == kind]
        if len({problems[row].dram_bytes for row in rows}) > 1:
            laws[kind] = fit_law([problems[row] for row in rows], [time_us[row] for row in rows])
    return laws


def unseen_us(problems: Sequence[Collective], time_us: Sequence[float]) -> list[float | None]:
    """Each collective's time in µs by the law fitted on those of other sizes; None where they make no law."""
    answers = []
    for problem in problems:
        others = [row for row, other in enumerate(problems) if other.dram_bytes != problem.dram_bytes]
        laws = fit_laws([problems[row] for row in others], [time_us[row] for row in others])
        answers.append(law_us(laws, problem))
    return answers
