"""Tests of answers that would not run or were never measured: memory of the board, and crossed settings."""

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from surrogate import load, predict
from surrogate.dataset.checks import normalise
from surrogate.dataset.rows import rows_by_family
from surrogate.features.conv import Conv
from surrogate.prediction.predictor import Predictor
from surrogate.uncertainty.fit import fit_unmeasured_group, group_splits
from surrogate.uncertainty.intervals import UNMEASURED_GROUP_HALF_WIDTH
from tests.prediction.conftest import bundle_of
from tests.prediction.problems import frame_of

V100 = "v100-sxm2-16gb"
LARGE = "n256c128h224w224k128r3s3p1"
TENSORS = 4 * (2 * 256 * 128 * 224**2 + 128 * 128 * 9)
"""Bytes of input, output and filter of `LARGE`."""


def test_a_workspace_beyond_the_boards_memory_is_excluded() -> None:
    found = load(V100).select(LARGE)
    assert found.algorithm == "WINOGRAD"
    assert all(each.workspace_bytes + TENSORS <= 16 * 2**30 for each in found.candidates)
    reasons = dict(found.excluded)
    assert reasons["WINOGRAD_NONFUSED"] == (
        f"its workspace of 28226.2 MiB, with tensors of {TENSORS / 2**20:.1f} MiB, exceeds the 16384.0 MiB of {V100}"
    )
    assert {"GEMM", "FFT"} <= reasons.keys()
    assert load("v100-sxm2-32gb").select(LARGE).excluded != found.excluded  # 20 GiB are left beside the tensors


def test_a_table_agrees_on_the_boards_memory() -> None:
    row = {"n": 256, "c": 128, "h": 224, "w": 224, "k": 128, "r": 3, "s": 3, "pad_h": 1, "pad_w": 1}
    table = pd.DataFrame([row] * 3).assign(algorithm=["FFT", "WINOGRAD", "IMPLICIT_GEMM"])
    assert load(V100).predict(table).to_frame()["supported"].tolist() == [False, True, True]
    assert load(V100).predict(table[list(row)]).to_frame()["algorithm"].tolist() == ["WINOGRAD"] * 3
    one = load(V100).predict(LARGE, algorithm="FFT")
    assert not one.supported and one.reason is not None and one.reason.startswith("its workspace of 24768.0 MiB")


def test_miopens_buffer_holds_all_groups_of_one_image() -> None:
    """MI210's find-db gives 57,802,752 bytes for 1024 images and for one; two groups fill as much as one group."""
    for text in ("n1024c128h112w112k128r3s3p1", "n1c128h112w112k128r3s3p1", "n8c128h112w112k128r3s3p1g2"):
        assert predict(text, gpu="mi210", algorithm="GEMM").workspace_bytes == 128 * 9 * 112**2 * 4


@pytest.mark.parametrize("text", ["n2560c128h224w224k128r3s3p1", "relu:n2560c1280h224w224", "gemm:m400096n400096k4096"])
def test_tensors_that_exceed_the_memory_are_said_to(text: str) -> None:
    answer, smaller = (predict(each, gpu=V100) for each in (text, text.replace("2560", "2").replace("00096", "96")))
    assert [note for note in answer.notes if note.startswith("the problem does not fit: its tensors take ")]
    assert not [note for note in smaller.notes if "fit" in note]


def test_tables_say_that_tensors_exceed_the_memory() -> None:
    rows = pd.DataFrame({"m": [64, 400096], "n": [64, 400096], "k": [64, 4096], "family": "gemm", "operator": "gemm"})
    notes = load(V100).predict(rows).to_frame()["notes"]
    assert ["does not fit" in str(each) for each in notes] == [False, True]


@pytest.mark.parametrize(("groups", "name"), [(2, "grouped"), (2048, "depthwise")])
def test_groups_that_were_measured_in_fp32_alone_are_wide_and_said_in_fp16(groups: int, name: str) -> None:
    text = f"n100c2048h14w14k2048r3s3p1g{groups}"
    found = load(V100).select(text, dtype="fp16", layout="NHWC")
    assert found.reason is not None and not found.in_domain
    assert found.reason.startswith(f"{name} problems were never measured with cudnn fwd fp16 tensor_op NHWC")
    assert all(each.half_width >= 4.4 for each in found.estimates)  # groups left out of training
    measured = load(V100).select(text)
    assert "never measured" not in str(measured.reason) and measured.estimates[0].half_width < 2.0
    ungrouped = load(V100).select("n100c256h14w14k256r3s3p1", dtype="fp16", layout="NHWC")
    assert "never measured with" not in str(ungrouped.reason) and ungrouped.estimates[0].half_width < 2.0
    published = load(V100).select("n100c2048h14w14k2048r3s3p1u2g32", dtype="fp16", layout="NHWC").estimates[0]
    assert published.lower_us < 47_300 < published.upper_us


def test_a_math_that_was_never_measured_is_in_the_headline(table: Callable[..., pd.DataFrame]) -> None:
    bundle = bundle_of(table(16, gpus=("A100-SXM4-80GB",)))
    asked = Predictor(bundle, gpu="a100-sxm4-80gb")
    text = "n8c64h28w28k64r3s3p1"
    headline = repr(asked.select(text, math="default")).splitlines()[0]
    assert headline.endswith(", math default never measured")
    assert repr(asked.predict(text, math="default")).splitlines()[0] == headline
    assert "never measured" not in repr(asked.select(text)).splitlines()[0]  # the only measured math
    assert asked.select(text, math="default").source == "datasheet" and asked.select(text).source == "model"


def test_the_width_of_a_kernel_group_comes_from_rows_without_it() -> None:
    """Groups in the larger of two element types are held out, with their shapes, and are off by a factor of 5."""
    counts = {("fp32", 1): 60, ("fp16", 1): 60, ("fp32", 2): 60, ("fp16", 2): 90}
    convs = [
        Conv(n=8, c=64, h=side, k=64, r=3, groups=groups, dtype=dtype)
        for (dtype, groups), count in counts.items()
        for side in range(10, 10 + count)
    ]
    frame = frame_of(convs, ["IMPLICIT_GEMM"], V100).assign(time_us=100.0, status="ok")
    ((_, rows),) = rows_by_family(normalise(frame, "table")).values()
    ((train, holdout),) = group_splits(rows, 0)
    kinds = rows.frame["dtype"].astype(str) + rows.frame["groups"].astype(str)
    assert set(kinds.iloc[holdout]) == {"fp162"} and set(kinds.iloc[train]) == {"fp321", "fp161", "fp322"}
    assert not {*rows.shape[train].tolist()} & {*rows.shape[holdout].tolist()}
    answers = [(5.0 * rows.time_us[holdout], np.zeros(len(holdout)))]
    assert fit_unmeasured_group(rows, [(train, holdout)], answers) == pytest.approx(np.log(5), rel=1e-3)
    assert fit_unmeasured_group(rows, [], []) == UNMEASURED_GROUP_HALF_WIDTH
