"""Tables of README.md and the guide: the accuracy per GPU. ``python -m experiments.gpu_table`` prints both.

Factors are the interval widths of the shipped bundles. The share of held-out times inside the intervals comes from
`experiments.widths`. The errors of whole passes come from `experiments.whole_networks`. ``python -m tests pages``
writes the pages.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cache
from typing import NamedTuple

import pandas as pd

from experiments.sources import HOME, own_settings
from surrogate.features.gpu import Gpu, gpu, gpus
from surrogate.prediction.shipped import bundles_by_family

FAMILIES = {"conv": "convolutions", "gemm": "matrix products", "attention": "attention", "moe": "mixtures of experts"}
"""Family → its column heading. `seer gpus` lists the other families."""
PASSES: dict[str, str] = own_settings(__file__)
"""Prefix of the name of a set of whole passes → its label in the table."""
HOLDOUT_SHAPES, LEFT_OUT = "shapes held out", "GPU left out"
"""Parts of the table that `experiments.widths` wrote."""
GOAL = (0.85, 0.95)
"""Range of a coverage that is near 90 %."""
MIN_SHAPES = 10
"""Minimum shapes of a cell that counts. Smaller cells are listed only."""
MAKERS = {"nvidia": "NVIDIA", "amd": "AMD", "intel": "Intel"}


class Accuracy(NamedTuple):
    """The answer of one family on one board: its source, and the factor for nine in ten times of each element type."""

    factors: tuple[float, ...]
    measured: bool
    coverage: float | None
    """Share of held-out times inside the interval: on held-out shapes (measured), or on held-out GPUs of the line.

    None: nothing was held out.
    """


class Evidence(NamedTuple):
    """The common facts of a row's boards: vendor, measured families, and whether a check exists."""

    vendor: str
    measured: tuple[str, ...]
    checked: bool


@cache
def widths() -> pd.DataFrame:
    """Return the claimed width and the coverage of every bundle, GPU, family and type."""
    return pd.read_csv(HOME / "tables" / "widths.csv")


@cache
def passes() -> dict[str, dict[str, float]]:
    """Return board → kind of whole pass → mean error in % of the shipped bundles, over all passes of the kind."""
    table = pd.read_csv(HOME / "tables" / "whole_networks.csv")
    table = table[(table["predictor"] == "ours") & (table["training"] != LEFT_OUT) & (table["gpu"] != "all")]
    names = {name: gpu(name + "erver" if name.endswith("_S") else name).name for name in set(table["gpu"])}
    errors: dict[str, dict[str, float]] = defaultdict(dict)
    for begin, kind in PASSES.items():
        rows = table[table["set"].str.startswith(begin)]
        rows = rows.assign(gpu=rows["gpu"].map(names), summed=rows["n"] * rows["mean_error_pct"])
        for board, sums in rows.groupby("gpu")[["summed", "n"]].sum().iterrows():
            errors[str(board)][kind] = sums["summed"] / sums["n"]
    return dict(errors)


@cache
def accuracies(board: Gpu) -> dict[str, Accuracy]:
    """Return family → the facts on the board. A family without answers is missing."""
    return {
        family: Accuracy(factors, bool(evidence["rows"]), _coverage(board, family, measured=bool(evidence["rows"])))
        for family, bundle in bundles_by_family(board).items()
        if family in FAMILIES
        for evidence in [bundle.evidence(family, board.name)]
        for factors in [(*evidence["factors_90"].values(),) or (evidence["factor_90"],)]
    }


def _coverage(board: Gpu, family: str, *, measured: bool) -> float | None:
    """Return the coverage. Each row of the board's own held-out shapes, or each held-out GPU and type, has the same
    weight."""
    rows = widths()[widths()["family"] == family]
    if measured:
        own = rows[(rows["part"] == HOLDOUT_SHAPES) & (rows["gpu"] == board.name)]
        return float((own["coverage"] * own["rows"]).sum() / own["rows"].sum())
    same_line = [gpu(str(name)).product_line == board.product_line for name in rows["gpu"]]
    others = rows[(rows["part"] == LEFT_OUT) & pd.Series(same_line, rows.index)]
    # If a line has one measured GPU, no GPU of the line was held out, and the width has no check.
    return float(others["coverage"].mean()) if others["gpu"].nunique() > 1 else None


def groups() -> list[tuple[str, list[Gpu]]]:
    """Return boards in the registry's order, grouped by equal evidence. Boards without a check come last."""
    together: dict[Evidence, list[Gpu]] = defaultdict(list)
    for board in gpus():
        measured = tuple(family for family, row in accuracies(board).items() if row.measured)
        together[Evidence(board.vendor, measured, bool(measured) or board.name in passes())].append(board)
    order = sorted(together, key=lambda key: (list(MAKERS).index(key.vendor), -len(key.measured), not key.checked))
    return [(_label(key, together[key]), together[key]) for key in order]


def _label(key: Evidence, boards: Sequence[Gpu]) -> str:
    return ", ".join(board.name for board in boards) if key.checked else f"other boards of {MAKERS[key.vendor]}"


def row(label: str, boards: Sequence[Gpu]) -> list[str]:
    """Return the label, a cell for each family, and a cell of whole passes."""
    cells = [
        _cell([accuracies(board)[family] for board in boards if family in accuracies(board)]) for family in FAMILIES
    ]
    errors = pd.DataFrame([passes().get(board.name, {}) for board in boards], columns=list(PASSES.values()))
    checked = [f"{kind} {_range(column.dropna(), '.0f')} %" for kind, column in errors.items() if column.notna().any()]
    return [label, *cells, ", ".join(checked) or "–"]


def _cell(rows: Sequence[Accuracy]) -> str:
    texts = []
    for measured in (True, False):
        part = [row for row in rows if row.measured == measured]
        coverage = [row.coverage for row in part if row.coverage is not None]
        share = f" ({_range([100 * each for each in coverage], '.0f')} %)" if coverage else ""
        factors = [factor for row in part for factor in row.factors]
        texts += [f"{'' if measured else '~'}×{_range(factors, '.1f')}{share}"] if part else []
    return ", others ".join(texts) or "none"


def _range(values: Iterable[float], form: str) -> str:
    ordered = sorted(values)
    low, high = format(ordered[0], form), format(ordered[-1], form)
    return low if low == high else f"{low}–{high}"


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """Return for each part the numbers of cells inside the goal, above and below it, the median width, the minimum."""
    cells = table[table["shapes"] >= MIN_SHAPES]
    cells = cells.assign(below=cells["coverage"] < GOAL[0], above=cells["coverage"] > GOAL[1])
    parts = cells.groupby("part", sort=False).agg(
        cells=("coverage", "size"),
        below=("below", "sum"),
        above=("above", "sum"),
        width=("claimed_factor", "median"),
        lowest=("coverage", "min"),
    )
    return parts.assign(inside=parts["cells"] - parts["below"] - parts["above"]).reset_index()


HEAD = ("GPU", *FAMILIES.values(), "whole passes")


def readme_rows() -> list[list[str]]:
    """Return README's rows: one per group of boards with equal evidence."""
    return [row(label, boards) for label, boards in groups()]


def guide_rows() -> list[list[str]]:
    """Return the guide's rows: one for each board with a measurement or a check."""
    return [
        row(board.name, [board])
        for board in gpus()
        if board.name in passes() or any(each.measured for each in accuracies(board).values())
    ]


if __name__ == "__main__":
    for table in (readme_rows(), guide_rows()):
        print(*(" | ".join(line) for line in (HEAD, *table)), sep="\n", end="\n\n")
