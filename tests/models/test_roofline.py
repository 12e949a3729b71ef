"""The roofline as a model: each algorithm's own arithmetic and traffic at the device's limits."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from surrogate.dataset.checks import normalise
from surrogate.dataset.rows import rows_of
from surrogate.features.conv import Conv
from surrogate.features.gpu import gpu
from surrogate.features.problem import SIZE_COLUMNS
from surrogate.features.roofline import roofline_us
from surrogate.features.terms import MECHANISM_TERMS
from surrogate.models import Model
from surrogate.models.roofline import Roofline

Table = Callable[..., pd.DataFrame]


def test_times_are_those_of_the_algorithms_own_work(table: Table) -> None:
    frame = normalise(table(4), "test")
    predicted = Roofline().predict_us(rows_of(frame))
    mechanisms = {
        "IMPLICIT_GEMM": "implicit_gemm",
        "IMPLICIT_PRECOMP_GEMM": "precomp_gemm",
        "FFT": "fft",
        "WINOGRAD": "winograd",
    }
    for i in range(0, len(frame), 5):
        sizes: dict[str, Any] = {name: int(frame[name][i]) for name in SIZE_COLUMNS}
        conv = Conv(**sizes)
        terms = MECHANISM_TERMS[mechanisms[frame["algorithm"][i]]](conv, (1.0, 1.0, 1.0))
        device = gpu(frame["gpu"][i])
        own_us = roofline_us(terms.arithmetic_flops, terms.dram_bytes, device.fp32_tflops, device.dram_gbs)
        assert predicted[i] == pytest.approx(own_us, rel=1e-5)  # the ratio is stored as float32


def test_more_images_never_take_less(table: Table) -> None:
    small, large = (
        Roofline().predict_us(rows_of(normalise(table(6, batches=(n,)), "test"))) for n in (2, 32)
    )
    assert (large >= small).all()


def test_nothing_is_fitted_saved_or_tuned(table: Table) -> None:
    rows = rows_of(normalise(table(3), "test"))
    model: Model = Roofline()
    fitted = model.fit(rows)
    assert fitted.save() == {} and Roofline.space(None) == {} and Roofline.predicts_time
    again = Roofline.load(model.params, {})
    np.testing.assert_array_equal(again.predict_us(rows), fitted.predict_us(rows))
