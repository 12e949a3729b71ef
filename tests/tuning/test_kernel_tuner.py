"""The strategy for Kernel Tuner. Simulated searches need the package; the rest does not."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from surrogate.tuning import kernel_tuner
from tests.known import cases
from tests.tuning.made_up import PARAMETERS, VALUES
from tests.tuning.test_tuner import GPU, SHAPE, problem, truth

PLAIN = {"a": [8, 16, 32, 64], "b": [1, 2, 4, 8]}
ODD = {"text": ["x,y", "a=b", "\n"], "mixed": [None, 1, "x"], "numpy": [np.int64(1), np.int64(2)], "gpu": [True, False]}


def simulate(
    path: Path, parameters: dict[str, Any], time_of: Callable[..., float], **search: Any
) -> list[dict[str, Any]]:
    """Return the results of a search in a cache in which ``time_of`` gives the times in ms, NaN for a failure."""
    package = pytest.importorskip("kernel_tuner")
    parts = ("compile", "verification", "benchmark", "strategy", "framework")
    extra = {**dict.fromkeys((f"{part}_time" for part in parts), 1), "timestamp": "2026-01-01 00:00:00"}
    cache = {}
    for key in itertools.product(*parameters.values()):
        time_ms = time_of(*key)
        measured = {"time": "RuntimeFailedConfig" if np.isnan(time_ms) else time_ms, "rate": 1 / time_ms}
        entry = dict(zip(parameters, key, strict=True)) | measured | {"times": [measured["time"]]} | extra
        cache[",".join(map(str, key))] = entry
    head = {"device_name": GPU, "kernel_name": "made_up", "problem_size": list(SHAPE), "objective": "time"}
    keys = {"tune_params_keys": list(parameters), "tune_params": parameters}
    path.write_text(json.dumps({**head, **keys, "cache": cache}, default=lambda value: value.item()))
    search |= {"strategy": kernel_tuner, "cache": str(path), "simulation_mode": True, "lang": "C", "quiet": True}
    search |= {"block_size_names": [*parameters][:2]}
    source, arguments = "void made_up(float *a) {}", [np.zeros(1, dtype=np.float32)]
    return package.tune_kernel("made_up", source, SHAPE, arguments, parameters, **search)[0]


@pytest.mark.parametrize("has_bundle", [True, False])
def test_kernel_tuner_accepts_the_search_as_its_strategy(bundle_path: Path, tmp_path: Path, has_bundle: bool) -> None:
    """With a bundle, the space may have parameters that are derived from those of the bundle."""
    parameters = {name: list(values) for name, values in VALUES.items()}
    options: dict[str, Any] = {"max_fevals": 15}
    if has_bundle:
        parameters["threads"] = [32 * number for number in VALUES["warps"]]
        options |= {"bundle": str(bundle_path), "gpu": GPU, "problem": problem()}
    restrictions = ["threads == 32 * warps"] if has_bundle else None
    path = tmp_path / "cache.json"
    search = {"strategy_options": options, "restrictions": restrictions}
    results = simulate(path, parameters, lambda *key: truth()[key[:4]] / 1e3, **search)
    measured = {tuple(result[name] for name in PARAMETERS) for result in results}
    assert len(measured) == len(results) == 15
    best_us = np.nanmin([truth()[key] for key in measured])
    assert best_us <= (1.1 if has_bundle else 2.0) * np.nanmin(list(truth().values()))


@pytest.mark.parametrize("search", [{}, {"objective": "rate", "objective_higher_is_better": True}])
@pytest.mark.parametrize("name", ODD)
def test_starts_and_odd_values_are_searched(tmp_path: Path, name: str, search: dict[str, Any]) -> None:
    parameters = {**PLAIN, name: ODD[name]}
    starts = [[64, 8, ODD[name][0]], [8, 1, ODD[name][1]]]
    named = [dict(zip(parameters, each, strict=True)) for each in starts]
    search["strategy_options"] = {"x0": {"numpy": np.array(starts), "mixed": named}.get(name, starts), "max_fevals": 25}
    found = simulate(tmp_path / "c.json", parameters, lambda a, b, _: abs(a - 32) + b, **search)
    assert [[each[parameter] for parameter in parameters] for each in found[:2]] == starts
    assert min(each["time"] for each in found) == 1 and len(found) == 25


INVALID = {
    "2 objectives, time, rate": {"objectives": {"time": False, "rate": True}},
    "x0 [63, 8] is not in the search space": {"strategy_options": {"x0": np.array([63, 8])}},
    "did you mean bundle?": {"strategy_options": {"bundel": "B"}},
}


@pytest.mark.parametrize(("words", "search"), INVALID.items())
def test_invalid_options_are_refused_in_one_line(refused, tmp_path: Path, words: str, search: dict[str, Any]) -> None:
    with refused(words):
        simulate(tmp_path / "cache.json", PLAIN, lambda a, b: a + b, **search)


@cases(__file__)
def test_the_sign_of_a_cost_tells_a_time_from_a_rate(cost: float, time_us: float | None) -> None:
    assert kernel_tuner.as_time_us(cost) == time_us
