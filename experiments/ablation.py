"""(r) Which terms carry the result: `boosted-terms` less one group of columns at a time, and `blend`'s parts."""

from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd

from experiments.drawing import dots
from experiments.effort import Effort
from experiments.experiment import Experiment, Outcome, columns_first
from experiments.held_out import candidate_rows
from experiments.objectives import MI210_FOLDS, MI210_SHAPES, sampled, shorter
from experiments.script import run_script
from experiments.sources import LABELS, Sources
from experiments.variants import Round, predict_variants, variant_verdicts
from experiments.words import interval, listing, percent, ratio
from surrogate.dataset.candidates import candidate_frame
from surrogate.dataset.rows import Rows
from surrogate.dataset.splits import folds
from surrogate.features.table import MACHINE_NAMES, TILE_NAMES
from surrogate.models import Model
from surrogate.models.blend import Blend
from surrogate.models.boosted import BoostedDims, BoostedTerms
from surrogate.models.columns import TERMS
from surrogate.models.gaussian import GaussianTerms

WHOLE = "boosted-terms"
GROUPS: Mapping[str, tuple[str, ...]] = {
    "waves and tiles": (
        "log2_blocks", "best_efficiency", "log2_occupied_time_us",
        *(f"{name}_{tile}" for tile in TILE_NAMES for name in ("log2_waves", "last_wave_share", "tile_utilisation")),
    ),
    "arithmetic per algorithm": ("log2_arithmetic_ratio", "log2_algorithm_roofline_ratio", "log2_kernels"),
    "memory and workspace": (
        "log2_tensor_bytes", "log2_intensity", "log2_dram_ratio", "log2_operand_bytes", "log2_workspace_bytes",
    ),
    "cache fit": ("log2_footprint_per_l2", "log2_workspace_per_l2"),
    "machine": MACHINE_NAMES,
    "quantisation": ("gemm_n_remainder_32", "gemm_n_remainder_128", "gemm_k_remainder_8"),
    "sizes as a product of matrices": (
        "log2_channels_in", "log2_channels_out", "log2_out_h", "log2_out_w", "log2_gemm_m", "log2_gemm_n",
        "log2_gemm_k", "log2_flops", "log2_flops_per_sm", "log2_roofline_us", "is_depthwise",
    ),
}  # fmt: skip
"""Group → the columns that it takes away."""
PARTS = ("blend's process", "blend")
"""Variants that add to the trees instead of taking from them."""


class _OnProblemRoofline(BoostedTerms):
    """All terms; the base is the problem's roofline alone, the same for every algorithm."""

    def _base_us(self, rows: Rows) -> np.ndarray:
        return rows.roofline_us


class _OnMicrosecond(BoostedTerms):
    """All terms; no base: trees on the log of the time itself."""

    def _base_us(self, rows: Rows) -> np.ndarray:
        return np.ones(len(rows))


def variants() -> dict[str, Model]:
    """Label → model, the whole one first."""
    trees = shorter()
    found: dict[str, Model] = {WHOLE: BoostedTerms(**trees)}
    found |= {f"no {group}": without(names)(**trees) for group, names in GROUPS.items()}
    found["no roofline of the algorithm in the base"] = _OnProblemRoofline(**trees)
    found["no roofline in the base"] = _OnMicrosecond(**trees)
    found["no terms (boosted-dims)"] = BoostedDims(**trees)
    process, blend = PARTS
    found[process] = GaussianTerms()
    found[blend] = Blend(**{f"trees.{key}": value for key, value in trees.items()})
    return found


def without(names: tuple[str, ...]) -> type[BoostedTerms]:
    """`boosted-terms` that does not see these columns; its base stays."""
    kept = tuple(name for name in TERMS if name not in names)
    return type("BoostedWithout", (BoostedTerms,), {"columns": kept})


def run(sources: Sources, effort: Effort) -> Outcome:
    """By shape on cuDNN (the partial table also trains), a sample of MI210's shapes, and cuDNN by GPU."""
    parts = []
    for label, rows, rounds, candidates in _tables(sources, effort):
        found = predict_variants(rows, candidates, rounds, variants(), effort.seed, effort.tick)
        parts.append(variant_verdicts(found).assign(data=label))
    table = pd.concat(parts, ignore_index=True)
    table = columns_first(table, "data", "variant")
    return Outcome(table, _figure(table), answer(table))


def _tables(sources: Sources, effort: Effort) -> Iterator[tuple[str, Rows, list[Round], str]]:
    cudnn, partial = effort.sample(sources.dataset("cudnn")), sources.dataset("partial")
    rows = candidate_rows([cudnn, partial])
    own = len(candidate_frame(cudnn, "algorithm"))
    main, also = rows.frame.iloc[:own], rows.frame.iloc[own:]
    for by, label in (("shape", LABELS["cudnn"]), ("gpu", f"{LABELS['cudnn']}, GPU unseen")):
        rounds = folds(by, main, also, effort.folds, effort.seed)
        yield label, rows, [(f.train, f.test) for f in rounds[: effort.folds]], "all"
    data = sampled(sources.dataset("mi210"), effort, MI210_SHAPES)
    rows = candidate_rows([data])
    rounds = folds("shape", rows.frame, rows.frame.iloc[:0], min(effort.folds, MI210_FOLDS), effort.seed)
    yield LABELS["mi210"], rows, [(f.train, f.test) for f in rounds], data.candidates


def answer(table: pd.DataFrame) -> str:
    """Per table: the whole model, and the variants that change error or slowdown beyond chance, largest first."""
    sentences = []
    for label, part in table.groupby("data", sort=False):
        part = part.set_index("variant")
        whole = part.loc[WHOLE]
        told = f"{label}: {WHOLE} {percent(whole['median_error_pct'])}"
        if np.isfinite(whole["slowdown_macro"]):
            told += (
                f", picks at {ratio(whole['slowdown_macro'])} {interval(whole['ci_low'], whole['ci_high'])}"
            )
        for kind in ("error", "slowdown"):
            missed = _significant(part, kind)
            told += (
                f"; {'error' if kind == 'error' else 'slowdown'} changes beyond chance with {listing(missed)}"
            )
        sentences.append(told)
    return ". ".join(sentences) + "."


def _significant(part: pd.DataFrame, kind: str) -> list[str]:
    """The variants whose paired interval excludes zero, the largest change first."""
    low, high = part[f"{kind}_change_low"], part[f"{kind}_change_high"]
    beyond = part[(low > 0) | (high < 0)]
    order = beyond[f"{kind}_change_pct"].abs().sort_values(ascending=False).index
    return [f"{label} ({beyond.loc[label, f'{kind}_change_pct']:+.1f})" for label in order]


def _figure(table: pd.DataFrame) -> str | None:
    shown = table[table["variant"] != WHOLE]
    return dots(
        shown, category="variant", series="data", value="error_change_pct", low="error_change_low",
        high="error_change_high", xlabel=f"median error less that of {WHOLE}, percentage points",
    )  # fmt: skip


EXPERIMENT = Experiment(
    "ablation",
    "Which analytical terms, and which parts of blend, carry the result?",
    ("cudnn", "partial", "mi210"),
    run,
)

if __name__ == "__main__":
    run_script(EXPERIMENT)
