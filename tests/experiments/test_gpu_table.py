"""The table of GPUs: rows, factors of bundles, and coverage and errors of committed tables."""

import pandas as pd
import pytest

from experiments.experiment import HOME
from experiments.gpu_table import FAMILIES, accuracies, groups, passes, readme_rows
from surrogate.features.gpu import gpu, gpus
from surrogate.prediction.shipped import bundles_by_family


def test_every_gpu_is_in_one_of_at_most_fifteen_rows() -> None:
    rows = groups()
    assert sorted(board.name for _, boards in rows for board in boards) == sorted(board.name for board in gpus())
    assert len(readme_rows()) == len(rows) <= 15


@pytest.mark.parametrize(("name", "family"), [("t4", "conv"), ("h100-sxm", "gemm"), ("rtx-3090", "attention")])
def test_a_factor_is_that_of_the_bundle(name: str, family: str) -> None:
    """A range is over the measured element types: an MI300X has 26 rows in bf16 beside 17,274 in fp8_block."""
    evidence = bundles_by_family(gpu(name))[family].evidence(family, name)
    factors = tuple(evidence["factors_90"].values())
    assert accuracies(gpu(name))[family][:2] == (factors or (evidence["factor_90"],), bool(evidence["rows"]))
    assert max(accuracies(gpu("mi300x"))["gemm"].factors) >= 1.6


def test_coverage_is_over_all_held_out_rows_or_the_left_out_gpus() -> None:
    """The T4 has 604 rows in fp16 and 2,718 in fp32; only one RDNA GPU was measured, so that it has no coverage."""
    coverage = accuracies(gpu("t4"))["conv"].coverage
    assert coverage == pytest.approx((604 * 0.92053 + 2718 * 0.902134) / (604 + 2718))
    widths = pd.read_csv(HOME / "tables" / "widths.csv").query("part == 'GPU left out' and bundle == 'language_moe'")
    assert accuracies(gpu("rtx-3090"))["moe"].coverage == pytest.approx(widths["coverage"].mean())
    assert accuracies(gpu("rx-6900-xt"))["conv"].coverage is None


def test_errors_of_passes_are_weighted_equally() -> None:
    table = pd.read_csv(HOME / "tables" / "whole_networks.csv").query("predictor == 'ours' and gpu == 'l4'")
    rows = table[table["set"].str.startswith("small programs, eager")]
    mean = (rows["mean_error_pct"] * rows["n"]).sum() / rows["n"].sum()
    assert passes()["l4"]["small programs"] == pytest.approx(mean)
    assert set(FAMILIES) <= set(accuracies(gpu("t4")))
