"""The Optuna sampler learns from everything that ran in a study, and proposes nothing twice."""

import copy
import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.samplers import PartialFixedSampler, RandomSampler

from surrogate.bundle.bundle import Bundle
from surrogate.features import Description
from surrogate.tuning import Sampler
from surrogate.tuning.optuna_sampler import times_of
from tests.known import cases
from tests.tuning.made_up import PARAMETERS, VALUES
from tests.tuning.test_tuner import GPU, problem, truth

TIMES_US = truth()
BEST_US = np.nanmin(list(TIMES_US.values()))
VALUE_OF: dict[str, Callable[[float], float]] = {
    "time": lambda time_us: time_us,
    "rate": lambda time_us: 0.0 if math.isnan(time_us) else 1e3 / time_us,
    "negative rate": lambda time_us: 0.0 if math.isnan(time_us) else -1e3 / time_us,
    "log": lambda time_us: math.log(time_us / (1.3 * BEST_US)),
    "inverse": lambda time_us: 1 / time_us if time_us < 2 * BEST_US else -math.inf,
}


@pytest.fixture(autouse=True)
def _warnings_of_optuna() -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # searches of settings in the same process show errors only


@pytest.fixture
def sampler(bundle: Bundle) -> Sampler:
    return Sampler(bundle, GPU, problem())


def suggested(trial: optuna.Trial, **fixed: object) -> tuple[object, ...]:
    """Return the trial's configuration, in which the values ``fixed`` are not suggested."""
    return tuple(fixed[name] if name in fixed else trial.suggest_categorical(name, VALUES[name]) for name in PARAMETERS)


def measure(trial: optuna.Trial) -> float:
    return TIMES_US[suggested(trial)]


def conditional(trial: optuna.Trial) -> float:
    """Suggest the warps of one order only, and nothing else of the largest blocks."""
    block_m = trial.suggest_categorical("block_m", VALUES["block_m"])
    if block_m == 128:
        raise optuna.TrialPruned
    order = trial.suggest_categorical("order", VALUES["order"])
    fixed = {"warps": 2} if order == "col" else {}
    return TIMES_US[suggested(trial, block_m=block_m, order=order, **fixed)]


def different(study: optuna.Study) -> int:
    """Return the number of different configurations in a study."""
    return len({tuple(sorted(trial.params.items())) for trial in study.trials})


@cases(__file__)
def test_times_have_the_order_of_costs(costs: list[float], times: list[float | None]) -> None:
    assert times_of(np.array(costs, dtype=float)) == pytest.approx(times)


@cases(__file__)
def test_each_kind_of_objective_leads_to_the_best(sampler: Sampler, direction: str, kind: str) -> None:
    study = optuna.create_study(sampler=sampler, direction=direction)
    study.optimize(lambda trial: VALUE_OF[kind](measure(trial)), n_trials=14)
    assert TIMES_US[tuple(study.best_trial.params[name] for name in PARAMETERS)] <= 1.15 * BEST_US
    assert different(study) == 14


@pytest.mark.parametrize("direction", ["minimize", "maximize"])
def test_no_value_stops_a_study(sampler: Sampler, direction: str) -> None:
    values: list[Any] = [0.0, -1.0, math.inf, -math.inf, math.nan, None, 1e308, -1e308, 5e-324, 3]
    pruner = optuna.pruners.HyperbandPruner(1, 9)  # it passes parts of the study to the sampler
    study = optuna.create_study(sampler=sampler, direction=direction, pruner=pruner)
    study.optimize(lambda trial: values[trial.number % 10] if suggested(trial) else None, n_trials=30)
    assert different(study) == 30


def test_enqueued_and_fixed_values_and_other_samplers_teach_the_configurations_that_ran(sampler: Sampler) -> None:
    study = optuna.create_study(sampler=RandomSampler(1))
    study.optimize(measure, n_trials=10)
    random = different(study)
    study.sampler = sampler
    study.enqueue_trial({"block_m": 128, "order": "col"})
    study.optimize(measure, n_trials=8)
    with pytest.warns(optuna.exceptions.ExperimentalWarning):
        study.sampler = PartialFixedSampler({"block_n": 64, "order": "row"}, sampler)
    study.optimize(measure, n_trials=4)
    assert different(study) == random + 12
    assert study.trials[10].params["block_m"] == 128 and study.trials[-1].params["block_n"] == 64


def test_conditional_trials_do_not_repeat(sampler: Sampler) -> None:
    study = optuna.create_study(sampler=sampler)
    study.optimize(conditional, n_trials=3 * 3 * (3 + 1))
    complete = [trial for trial in study.trials if trial.state == optuna.trial.TrialState.COMPLETE]
    assert len(complete) > 20 and len({tuple(sorted(trial.params.items())) for trial in complete}) == len(complete)


def test_workers_threads_and_copies_share_a_study(sampler: Sampler) -> None:
    first = optuna.create_study(sampler=sampler)
    copies = (copy.deepcopy(sampler), pickle.loads(pickle.dumps(sampler)))
    others = [optuna.load_study(study_name=first.study_name, storage=first._storage, sampler=each) for each in copies]
    running = [(study, study.ask()) for study in (first, *others) for _ in range(3)]
    for study, trial in [(study, trial, suggested(trial))[:2] for study, trial in running]:
        study.tell(trial, measure(trial))
    first.optimize(measure, n_trials=15, n_jobs=4)
    assert different(first) == 24
    second = optuna.create_study(sampler=sampler)  # it has nothing of the first one
    second.optimize(measure, n_trials=3)
    assert second.trials[0].params == first.trials[0].params


def missing(trial: optuna.Trial) -> bool:
    return trial.suggest_categorical("a", [None, "x"]) is None


def test_further_parameters_and_a_finished_space_give_one_warning_each(caplog: pytest.LogCaptureFixture) -> None:
    study = optuna.create_study(sampler=Sampler(Description("k", (), {"a": ("None", "x"), "b": (1, 2, 3)}), GPU))
    study.optimize(lambda trial: trial.suggest_int("b", 1, 3) + missing(trial), 9)
    study.optimize(lambda trial: trial.suggest_float("B", 0, 1) + missing(trial), 3)
    assert different(study) == 6 + 3
    assert [record.message.split()[0] for record in caplog.records] == ["all", "B"]
    assert caplog.records[1].message.endswith("did you mean b?")
