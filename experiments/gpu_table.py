"""What is known of which GPU: the tables of README.md and the guide. ``python -m experiments.gpu_table`` prints both.

Factors are what the bundles that ship claim, beside the share of times that they held outside of their fits
(`experiments.widths`); whole passes are those of `experiments.whole_networks`. ``python -m tests pages`` writes the
pages.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cache
from typing import NamedTuple

import pandas as pd

from experiments.experiment import HOME
from experiments.widths import HELD, LEFT_OUT
from surrogate.features.gpu import Gpu, gpu, gpus
from surrogate.prediction.shipped import answering

FAMILIES = {"conv": "convolutions", "gemm": "matrix products", "attention": "attention", "moe": "mixtures of experts"}
"""Family → its head; the others stand in `seer gpus`."""
PASSES = {
    "transformers": "transformers",
    "torch7": "fp32 image networks",
    "timm, convolutions, NCHW": "image networks",
    "small programs, eager": "small programs",
    "llm": "language models",
}
"""How the name of a set of whole passes begins → what the table calls it."""
MAKERS = {"nvidia": "NVIDIA", "amd": "AMD", "intel": "Intel"}


class Known(NamedTuple):
    """What answers for one family on one board: the factor that nine in ten times are meant to be off by less than."""

    factor: float
    measured: bool
    held: float | None
    """Share of the times that were, on shapes held out (measured), or on GPUs of the line left out; None: no judge."""


class Evidence(NamedTuple):
    """What boards of one row have in common: maker, families that were measured, and whether anything was checked."""

    vendor: str
    measured: tuple[str, ...]
    checked: bool


@cache
def widths() -> pd.DataFrame:
    """Claimed and held, of every bundle, GPU, family and type."""
    return pd.read_csv(HOME / "tables" / "widths.csv")


@cache
def passes() -> dict[str, dict[str, float]]:
    """Board → kind of whole pass → mean error in %, of passes as shipped, over all passes of the kind."""
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
def known(board: Gpu) -> dict[str, Known]:
    """Family → what is known of it on the board; a family that nothing answers is missing."""
    return {
        family: Known(factor, bool(evidence["rows"]), _held(board, family, measured=bool(evidence["rows"])))
        for family, bundle in answering(board).items()
        if family in FAMILIES
        for evidence in [bundle.evidence(family, board.name)]
        if isinstance(factor := evidence["factor_90"], float)
    }


def _held(board: Gpu, family: str, *, measured: bool) -> float | None:
    """Of the board's own shapes held out, every row counts once; of GPUs left out, every GPU and type once."""
    rows = widths()[widths()["family"] == family]
    if measured:
        own = rows[(rows["part"] == HELD) & (rows["gpu"] == board.name)]
        return float((own["coverage"] * own["rows"]).sum() / own["rows"].sum())
    alike = [gpu(str(name)).line == board.line for name in rows["gpu"]]
    others = rows[(rows["part"] == LEFT_OUT) & pd.Series(alike, rows.index)]
    # A line of which one GPU was measured has had none left out: its width was judged by no other.
    return float(others["coverage"].mean()) if others["gpu"].nunique() > 1 else None


def groups() -> list[tuple[str, list[Gpu]]]:
    """Boards in the registry's order, those together of which the same is known; what nobody checked comes last."""
    together: dict[Evidence, list[Gpu]] = defaultdict(list)
    for board in gpus():
        measured = tuple(family for family, row in known(board).items() if row.measured)
        together[Evidence(board.vendor, measured, bool(measured) or board.name in passes())].append(board)
    order = sorted(together, key=lambda key: (list(MAKERS).index(key.vendor), -len(key.measured), not key.checked))
    return [(_label(key, together[key]), together[key]) for key in order]


def _label(key: Evidence, boards: Sequence[Gpu]) -> str:
    return ", ".join(board.name for board in boards) if key.checked else f"other boards of {MAKERS[key.vendor]}"


def row(label: str, boards: Sequence[Gpu]) -> list[str]:
    """The label, a cell for each family, and one of whole passes."""
    cells = [_cell([known(board)[family] for board in boards if family in known(board)]) for family in FAMILIES]
    errors = pd.DataFrame([passes().get(board.name, {}) for board in boards], columns=list(PASSES.values()))
    checked = [f"{kind} {_range(column.dropna(), '.0f')} %" for kind, column in errors.items() if column.notna().any()]
    return [label, *cells, ", ".join(checked) or "–"]


def _cell(rows: Sequence[Known]) -> str:
    texts = []
    for measured in (True, False):
        part = [row for row in rows if row.measured == measured]
        held = [row.held for row in part if row.held is not None]
        share = f" ({_range([100 * each for each in held], '.0f')} %)" if held else ""
        texts += [f"{'' if measured else '~'}×{_range([row.factor for row in part], '.1f')}{share}"] if part else []
    return ", others ".join(texts) or "none"


def _range(values: Iterable[float], form: str) -> str:
    ordered = sorted(values)
    low, high = format(ordered[0], form), format(ordered[-1], form)
    return low if low == high else f"{low}–{high}"


HEAD = ("GPU", *FAMILIES.values(), "whole passes")


def in_short() -> list[list[str]]:
    """README's rows: boards of which the same is known together."""
    return [row(label, boards) for label, boards in groups()]


def in_full() -> list[list[str]]:
    """The guide's rows: one for each board of which anything was measured or checked."""
    return [
        row(board.name, [board])
        for board in gpus()
        if board.name in passes() or any(each.measured for each in known(board).values())
    ]


if __name__ == "__main__":
    for table in (in_short(), in_full()):
        print(*(" | ".join(line) for line in (HEAD, *table)), sep="\n", end="\n\n")
