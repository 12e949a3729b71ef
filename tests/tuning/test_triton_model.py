"""The performance model for Triton ranks configurations, and never stops a launch."""

import shutil
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest

from surrogate.bundle.bundle import Bundle
from surrogate.bundle.train import train
from surrogate.dataset.described import KernelColumns
from surrogate.features import Description
from surrogate.tuning import perf_model
from tests.known import cases
from tests.tuning.made_up import PARAMETERS, times
from tests.tuning.test_tuner import GPU, problem, truth


class Typed(NamedTuple):
    """A tensor."""

    dtype: str


class Constant(NamedTuple):
    """A `tl.constexpr`."""

    value: object


@pytest.fixture(scope="module")
def typed_bundle() -> Bundle:
    """A kernel that is slower with fp32, and whose first order needs fp16."""
    table = times(((64, 512), (256, 2048)), ("v100-sxm2-16gb",))
    other = table.assign(time_us=2 * table["time_us"], dtype_0="torch.float32")
    columns = KernelColumns(PARAMETERS, ("m", "n"), ("dtype_0",), name="made_up")
    return train(pd.concat([table.assign(dtype_0="torch.float16"), other]), kernel=columns)


def scores(model: Any, **launch: Any) -> list[float]:
    """Return the value of each configuration of the made-up kernel."""
    return [model(**launch, **dict(zip(PARAMETERS, key, strict=True))) for key in truth()]


def test_the_model_ranks_configurations(bundle: Bundle) -> None:
    times_us = np.array([*truth().values()])
    best_three = np.argsort(scores(perf_model(bundle, gpu=GPU), **problem(), x_ptr=None))[:3]
    assert np.nanmin(times_us[best_three]) <= 1.25 * np.nanmin(times_us)


@cases(__file__)
def test_a_launch_gets_scores_or_one_warning(typed_bundle: Bundle, launch: dict[str, Any], words: str) -> None:
    """Without scores all values are equal, and Triton keeps the order of its list."""
    kinds = {"tensor": Typed, "constant": Constant, "number": float}
    given = {name: kinds[value[0]](value[1]) if isinstance(value, list) else value for name, value in launch.items()}
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        values = scores(perf_model(typed_bundle, gpu=GPU), **given)
    assert [words in str(each.message) for each in warned] == [True] * bool(words)
    assert (len({*values}) > 1) == (words == "" or "ranks by" in words)


@pytest.mark.parametrize("is_damaged", [True, False])
def test_an_unusable_bundle_gives_a_warning(bundle_path: Path, tmp_path: Path, is_damaged: bool) -> None:
    if is_damaged:
        shutil.copytree(bundle_path, tmp_path / "B")
        (tmp_path / "B" / "bundle.json").write_text("{")
    with pytest.warns(UserWarning, match="Triton keeps the first top_k"):
        model = perf_model(tmp_path / "B")
    assert len({*scores(model)}) == 1


def test_a_parameter_in_capital_letters_gives_a_hint(bundle: Bundle) -> None:
    launch = {name.upper(): value for name, value in zip(PARAMETERS, next(iter(truth())), strict=True)}
    with pytest.warns(UserWarning, match="no argument block_m, .*; it has BLOCK_M, did you mean block_m"):
        perf_model(bundle, gpu=GPU)(**problem(), **launch)


def test_a_description_is_refused(refused) -> None:
    with refused("give perf_model a bundle"):
        perf_model(Description("made_up", (), {"a": (1, 2)}))
