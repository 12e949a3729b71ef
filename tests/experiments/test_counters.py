"""The experiment `counters` on the shipped counts: kernels computed by hand, matches, and the resulting table."""

from pathlib import Path

import pandas as pd
import pytest

from experiments.counters import EXPERIMENT, PADDED, layer_kernels, matched
from experiments.experiment import Effort, ExperimentResult, one_thread
from experiments.sources import Sources
from surrogate.features.problem import SIZE_COLUMNS


@pytest.fixture(scope="module")
def sources(measurements: Path) -> Sources:
    return Sources(measurements)


@pytest.fixture(scope="module")
def outcome(sources: Sources) -> ExperimentResult:
    with one_thread():
        return EXPERIMENT.run(sources, Effort(quick=True, models=("roofline", "seer-time-only")))


def test_layer_kernels_match_counts_by_hand(sources: Sources) -> None:
    """The first convolution of AlexNet has 96 filters of 363 values at 54² pixels, and a bias."""
    layers = layer_kernels(sources.path("layer_counts"))
    first = layers[(layers["network"] == "BVLC_AlexNet") & (layers["LayerName"] == "conv_1")]
    assert first["main"].tolist() == [True, False]
    # There are 92 blocks of 32 pixels and 3 of 32 filters, with sums of 368 values; each output is scaled once.
    assert first["instructions"].iloc[0] == 92 * 32 * 96 * 368 + 96 * 54**2


def test_a_kernel_is_matched_to_the_problem_that_explains_its_count(sources: Sources) -> None:
    """The first layer of VGG sums 27 values, padded to 32; a problem with twice the outputs does not match."""
    layers = layer_kernels(sources.path("layer_counts"))
    vgg = dict(zip(SIZE_COLUMNS, (1, 3, 224, 224, 64, 3, 3, 1, 1, 1, 1, 1, 1, 1), strict=True))
    problems = pd.DataFrame([{**vgg, "networks": "VGG16,VGG19"}, {**vgg, "k": 128, "networks": "VGG16"}])
    found, note = matched(layers, problems)
    rows = found[["network", "tile", "blocks", "k"]].to_numpy().tolist()
    assert rows == [[network, "32x32", 224 * 224 // 32 * 2, 64] for network in ("VGG16", "VGG19")]
    kernels = int((layers["main"] & (layers["LayerType"] == "Conv")).sum())
    assert note.startswith(f"without a match: {kernels - 2} of no")


@pytest.mark.slow
def test_flops_of_terms_agree_with_measured_counts(outcome: ExperimentResult) -> None:
    table = outcome.table[outcome.table["part"] == "FLOPs"].set_index(["kernels", "compared"])
    direct, padded = table.loc[("implicit GEMM", "terms")], table.loc["implicit GEMM 32x32"].iloc[0]
    assert direct["n"] > 800 and 0.8 < direct["ratio_median"] < 0.95
    assert padded["ratio_p5"] > 0.99 and padded["ratio_p95"] < 1
    # The counts of Winograd transforms follow from the matrices, the padding of the kernels and their outputs.
    names = [("winogradForwardFilter4x4", "terms")]
    names += [(f"winogradForward{kernel}4x4", PADDED) for kernel in ("Data", "Output")]
    exact = table.loc[names]
    assert exact["ratio_p5"].tolist() == exact["ratio_p95"].tolist() == [1, 1, 1]


@pytest.mark.slow
def test_fits_have_small_errors(outcome: ExperimentResult) -> None:
    table = outcome.table.set_index(["part", "compared"]).sort_index()
    formula = table.loc[("instructions per block", "SEER's formula, fitted")]
    assert (formula.loc[formula["n"] > 0, "median_error_pct"] < 1).all()
    times = table.loc["time"]
    assert times["n"].nunique() == 1 and set(times.index) == {"SEER's forms", "roofline", "seer-time-only"}
    assert times.loc["SEER's forms", "median_error_pct"] < 10 < times.loc["roofline", "median_error_pct"]
    assert outcome.figure is not None
