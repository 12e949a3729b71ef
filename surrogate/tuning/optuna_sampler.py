"""A sampler of Optuna's: ``optuna.create_study(sampler=surrogate.tuning.Sampler("B", gpu="a100"))``.

A trial's objective suggests the kernel's parameters by their names and returns a time in µs; the first trials are what
the bundle expects to be fastest, later ones learn from what was measured. A trial that failed or was pruned counts as a
configuration that does not run.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from surrogate.features.description import Configuration
from surrogate.features.errors import InputError
from surrogate.tuning.tuner import Source, Tuner

_LOG = optuna.logging.get_logger("optuna")


class Sampler(BaseSampler):
    """Draws configurations from a `surrogate.tuning.Tuner`, whose arguments these are.

    A parameter that the kernel has not, or a value outside the distribution that the objective asks for, is drawn at
    random, with a warning. Studies must minimise.
    """

    def __init__(self, source: Source, gpu: str = "", problem: object = None, *, seed: int = 0) -> None:
        self._arguments = (source, gpu, problem)
        self._seed = seed
        self._tuner: Tuner | None = None
        self._asked: dict[int, Configuration | None] = {}
        self._random = RandomSampler(seed)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Nothing: the objective itself says what it suggests."""
        return {}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Nothing; see `sample_independent`."""
        return {}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """The value of the configuration that the trial is to measure."""
        if trial.number not in self._asked:
            self._asked[trial.number] = next(iter(self._tuned(study).ask()), None)
        configuration = self._asked[trial.number] or {}
        with suppress(KeyError, ValueError, TypeError):
            value = configuration[param_name]
            if param_distribution._contains(param_distribution.to_internal_repr(value)):
                return value
        _LOG.warning(f"{param_name} is drawn at random: the kernel's configurations have no such parameter or value")
        self._asked[trial.number] = None
        return self._random.sample_independent(study, trial, param_name, param_distribution)

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None) -> None:
        """Tell what the trial measured."""
        configuration = self._asked.pop(trial.number, None)
        if configuration is not None and state != TrialState.RUNNING:
            self._tuned(study).tell(configuration, values[0] if values and state == TrialState.COMPLETE else None)

    def reseed_rng(self) -> None:
        """Another seed for what is drawn at random."""
        self._random.reseed_rng()

    def _tuned(self, study: Study) -> Tuner:
        """The tuner, which knows the trials that the study has already."""
        if self._tuner is None:
            self._tuner = Tuner(*self._arguments, seed=self._seed)
            for trial in study.get_trials(deepcopy=False):
                ended = trial.state in (TrialState.COMPLETE, TrialState.FAIL, TrialState.PRUNED)
                if ended and trial.params:
                    with suppress(InputError):  # parameters of another kernel, or values that it has not
                        self._tuner.tell(trial.params, trial.value if trial.state == TrialState.COMPLETE else None)
        return self._tuner
