"""The tuner and its clients: an Optuna study, Kernel Tuner in simulation, and a Triton performance model."""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest

from surrogate.bundle.bundle import Bundle
from surrogate.features.description import Description, description_of
from surrogate.features.errors import InputError
from surrogate.tuning import Sampler, Tuner, kernel_tuner, perf_model
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
    description = {"name": "made_up", "sizes": ["m", "n"], "parameters": dict(VALUES), "conditions": []}
    for formulas in ({}, {"blocks": "ceil(m / block_m) * ceil(n / block_n)", "threads_per_block": "32 * warps"}):
        tuner = Tuner(description_of({**description, "formulas": formulas}, "here"), GPU, problem())
        measure(tuner, 30)
        assert tuner.best is not None
        assert tuner.best[1] <= 1.3 * np.nanmin(list(truth().values()))


def test_an_interrupted_search_resumes_from_its_log(refused, bundle: Bundle, tmp_path: Path) -> None:
    log = tmp_path / "search.jsonl"
    earlier = measure(Tuner(bundle, GPU, problem(), log=log), 4)
    log.write_text(log.read_text() + '{"configuration": {"block_')  # the process was killed while writing
    resumed = Tuner(bundle, GPU, problem(), log=log)
    assert resumed.evaluations == 4
    assert not set(measure(resumed, 6)) & set(earlier)
    with refused("another file"):
        Tuner(bundle, "l40s", problem(), log=log)


@cases(__file__)
def test_an_invalid_problem_is_refused_in_one_line(bundle: Bundle, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        Tuner(bundle, GPU, **arguments)


def test_a_missing_gpu_is_refused_and_an_unknown_gpu_is_warned_about(refused, bundle: Bundle) -> None:
    with refused("gpu is missing"):
        Tuner(bundle, problem=problem())
    with pytest.warns(UserWarning, match="the GPU rtx-4091 is not registered.*did you mean"):
        Tuner(bundle, "rtx-4091", problem())


def test_an_invalid_measurement_is_refused_in_one_line(refused, bundle: Bundle) -> None:
    tuner = Tuner(bundle, GPU, problem())
    (configuration,) = tuner.ask()
    for time_us in (0.0, -1.0, float("nan")):
        with refused("above 0"):
            tuner.tell(configuration, time_us)
    with refused("not one of the"):
        tuner.tell({**configuration, "block_m": 17}, 1.0)


def test_the_sampler_finds_a_good_configuration_in_an_optuna_study(bundle: Bundle) -> None:
    times_us = truth()

    def objective(trial: optuna.Trial) -> float:
        configuration = (
            trial.suggest_categorical("block_m", VALUES["block_m"]),
            trial.suggest_int("block_n", 16, 64, step=16),
            trial.suggest_int("warps", 2, 8),
            trial.suggest_categorical("order", VALUES["order"]),
        )
        if np.isnan(times_us[configuration]):
            raise optuna.TrialPruned
        return times_us[configuration]

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=Sampler(bundle, GPU, problem()))
    study.optimize(objective, n_trials=10)
    assert len({tuple(trial.params.values()) for trial in study.trials}) == 10
    assert study.best_value <= 1.1 * np.nanmin(list(times_us.values()))
    # Another sampler continues the same study and proposes none of its configurations again.
    study.sampler = Sampler(bundle, GPU, problem())
    study.optimize(objective, n_trials=5)
    assert len({tuple(trial.params.values()) for trial in study.trials}) == 15


def test_the_triton_performance_model_ranks_configurations(refused, bundle: Bundle) -> None:
    model = perf_model(bundle, gpu=GPU)
    times_us = truth()
    scores = {key: model(**dict(zip(PARAMETERS, key, strict=True)), **problem(), x_ptr=None) for key in times_us}
    best_three = sorted(scores, key=scores.__getitem__)[:3]
    assert np.nanmin([times_us[key] for key in best_three]) <= 1.25 * np.nanmin(list(times_us.values()))
    with refused("no argument n"):
        model(m=1, **dict(zip(PARAMETERS, next(iter(times_us)), strict=True)))


@pytest.mark.parametrize("has_bundle", [True, False])
def test_kernel_tuner_accepts_the_search_as_its_strategy(bundle_path: Path, tmp_path: Path, has_bundle: bool) -> None:
    """With a bundle, the space may have parameters that are derived from those of the bundle."""
    package = pytest.importorskip("kernel_tuner")
    cache = {}
    warps = PARAMETERS.index("warps")
    for base_key, time_us in truth().items():
        key = (*base_key, 32 * int(str(base_key[warps]))) if has_bundle else base_key
        entry: dict[str, object] = dict(zip((*PARAMETERS, "threads"), key, strict=False))
        entry["time"] = "RuntimeFailedConfig" if np.isnan(time_us) else time_us / 1e3
        parts = ("compile", "verification", "benchmark", "strategy", "framework")
        extra = dict.fromkeys((f"{part}_time" for part in parts), 1)
        cache[",".join(map(str, key))] = entry | extra | {"times": [entry["time"]], "timestamp": "2026-01-01 00:00:00"}
    parameters = {name: list(values) for name, values in VALUES.items()}
    if has_bundle:
        parameters["threads"] = [32 * number for number in VALUES["warps"]]
    head = {"device_name": GPU, "kernel_name": "made_up", "problem_size": list(SHAPE), "objective": "time"}
    keys = {"tune_params_keys": list(parameters), "tune_params": parameters}
    path = tmp_path / "cache.json"
    path.write_text(json.dumps({**head, **keys, "cache": cache}))
    options = {"bundle": str(bundle_path), "gpu": GPU, "problem": problem()} if has_bundle else {}
    source, arguments = "void made_up(float *a) {}", [np.zeros(1, dtype=np.float32)]
    search: dict[str, Any] = {"strategy": kernel_tuner, "strategy_options": {**options, "max_fevals": 15}}
    search |= {"restrictions": ["threads == 32 * warps"] if has_bundle else None, "cache": str(path)}
    search |= {"block_size_names": ["block_m", "block_n"], "simulation_mode": True, "lang": "C", "quiet": True}
    results, _ = package.tune_kernel("made_up", source, SHAPE, arguments, parameters, **search)
    measured = {tuple(result[name] for name in PARAMETERS) for result in results}
    assert len(measured) == len(results) == 15
    best_us = np.nanmin([truth()[key] for key in measured])
    assert best_us <= (1.1 if has_bundle else 2.0) * np.nanmin(list(truth().values()))


def test_a_description_without_conditions_allows_all_combinations() -> None:
    tuner = Tuner(Description("plain", (), {"a": (1, 2), "b": ("x", "y")}), GPU)
    assert {tuple(configuration.values()) for configuration in tuner.configurations} == set(
        itertools.product((1, 2), ("x", "y"))
    )
