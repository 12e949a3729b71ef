"""The tuner: proposals, measurements, logs, and refusals."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from surrogate.bundle.bundle import Bundle
from surrogate.features.description import Description, description_of
from surrogate.features.errors import InputError
from surrogate.tuning import Tuner
from surrogate.tuning.search import Search
from tests.known import cases
from tests.tuning.made_up import PARAMETERS, VALUES, times

GPU, SHAPE = "a100-sxm4-80gb", (256, 2048)
"""A GPU and a shape that are left out of training."""


def truth() -> dict[tuple[object, ...], float]:
    """Return configuration → time in µs; NaN if it fails."""
    table = times((SHAPE,), (GPU,))
    return dict(zip(table[list(PARAMETERS)].itertuples(index=False, name=None), table["time_us"], strict=True))


def problem() -> dict[str, int]:
    return dict(zip(("m", "n"), SHAPE, strict=True))


def measure(tuner: Tuner, count: int) -> list[tuple[object, ...]]:
    """Measure the next ``count`` configurations and return their keys."""
    times_us = truth()
    proposed = []
    for _ in range(count):
        for configuration in tuner.ask():
            key = tuple(configuration[name] for name in PARAMETERS)
            proposed.append(key)
            tuner.tell(configuration, None if np.isnan(times_us[key]) else times_us[key])
    return proposed


def test_ten_measurements_on_a_new_gpu_come_near_the_best(bundle: Bundle) -> None:
    tuner = Tuner(bundle, GPU, problem())
    measure(tuner, 10)
    assert tuner.best is not None
    assert tuner.best[1] <= 1.1 * np.nanmin(list(truth().values()))


def test_a_description_without_a_bundle_is_tuned_from_a_cold_start() -> None:
    description = {"name": "made_up", "sizes": ["m", "n"], "parameters": VALUES, "conditions": []}
    for formulas in ({}, {"blocks": "ceil(m / block_m) * ceil(n / block_n)", "threads_per_block": "32 * warps"}):
        tuner = Tuner(description_of({**description, "formulas": formulas}, "here"), GPU, problem())
        measure(tuner, 30)
        assert tuner.best is not None
        assert tuner.best[1] <= 1.3 * np.nanmin(list(truth().values()))


def test_an_interrupted_search_resumes_from_its_log(refused, bundle: Bundle, tmp_path: Path) -> None:
    log = tmp_path / "search.jsonl"
    earlier = measure(Tuner(bundle, GPU, problem(), log=log), 4)
    for count in (4, 6):
        log.write_text(log.read_text() + '{"configuration": {"block_')  # the process was killed while writing
        resumed = Tuner(bundle, GPU, problem(), log=log)
        assert resumed.evaluations == len({*earlier}) == count
        earlier += measure(resumed, 2)
    assert Tuner(bundle, "A100-SXM4-80GB", "made_up:n2048,m256", log=log).evaluations == 8
    with refused("another file"):
        Tuner(bundle, "l40s", problem(), log=log)


def test_a_long_log_is_read_with_one_fit_and_numpy_values_are_stored(tmp_path: Path, monkeypatch) -> None:
    """These times make the noise small; the scales of the process then exceed the accuracy of float32."""
    fits = []
    fitted_scales = Search._fitted_scales
    monkeypatch.setattr(Search, "_fitted_scales", lambda search: fits.append(1) or fitted_scales(search))
    kernel = Description("k", (), {"a": tuple(range(40)), "b": tuple(range(40))})
    Tuner(kernel, GPU, log=tmp_path / "log").tell({"a": np.int64(39), "b": 39}, np.float32(700))
    with (tmp_path / "log").open("a") as file:
        for at in range(400):
            file.write(f'{{"configuration": {{"a": {at % 40}, "b": {at // 40}}}, "time_us": {100 + abs(at - 250)}}}\n')
    assert Tuner(kernel, GPU, log=tmp_path / "log").best == ({"a": 10, "b": 6}, 100) and fits == [1]


@cases(__file__)
def test_an_invalid_problem_is_refused_in_one_line(bundle: Bundle, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        Tuner(bundle, GPU, **arguments)


def test_a_missing_gpu_is_refused_and_an_unknown_gpu_is_warned_about(refused, bundle: Bundle) -> None:
    with refused("gpu is missing"):
        Tuner(bundle, problem=problem())
    with pytest.warns(UserWarning, match="the GPU rtx-4091 is not registered.*did you mean"):
        Tuner(bundle, "rtx-4091", problem())


@cases(__file__)
def test_an_invalid_measurement_is_refused_in_one_line(refused, bundle: Bundle, time_us: Any, words: str) -> None:
    tuner = Tuner(bundle, GPU, problem())
    (configuration,) = tuner.ask()
    with refused(words):
        tuner.tell({**configuration, "block_m": 17} if time_us == 1 else configuration, time_us)


def test_a_description_without_conditions_allows_all_combinations() -> None:
    values = {"a": (1, 2), "b": ("x", "y")}
    tuner = Tuner(Description("plain", (), values), GPU)
    assert [tuple(each.values()) for each in tuner.configurations] == [*itertools.product(*values.values())]
