"""A sampler for Optuna: ``optuna.create_study(sampler=surrogate.tuning.Sampler("B", gpu="a100"))``.

The objective suggests the kernel's parameters by their names and returns a time in µs. The first trials are the
configurations with the shortest expected times; later ones also use the measured times. A failed or pruned trial counts
as a configuration that does not run.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from surrogate.features import Configuration, InputError
from surrogate.tuning.tuner import KernelSource, Tuner

_LOG = optuna.logging.get_logger("optuna")


class Sampler(BaseSampler):
    """An Optuna sampler that takes its configurations from a `surrogate.tuning.Tuner`.

    A value is drawn at random, with a warning, if the kernel lacks the parameter or if the objective's distribution
    does not contain the value. Studies must minimise.

    Parameters
    ----------
    source, gpu, problem, seed
        The arguments of `surrogate.tuning.Tuner`.
    """

    def __init__(self, source: KernelSource, gpu: str = "", problem: object = None, *, seed: int = 0) -> None:
        self._arguments = (source, gpu, problem)
        self._seed = seed
        self._tuner: Tuner | None = None
        self._configurations: dict[int, Configuration | None] = {}
        self._random = RandomSampler(seed)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Return an empty space, since the objective suggests each parameter itself."""
        return {}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return no values; `sample_independent` samples them."""
        return {}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Return a parameter's value in the configuration of the trial."""
        if trial.number not in self._configurations:
            self._configurations[trial.number] = next(iter(self._tuner_of(study).ask()), None)
        configuration = self._configurations[trial.number] or {}
        with suppress(KeyError, ValueError, TypeError):
            value = configuration[param_name]
            if param_distribution._contains(param_distribution.to_internal_repr(value)):
                return value
        _LOG.warning(f"{param_name} is drawn at random, since the kernel has no such parameter or value")
        self._configurations[trial.number] = None
        return self._random.sample_independent(study, trial, param_name, param_distribution)

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None) -> None:
        """Pass the trial's time to the tuner."""
        configuration = self._configurations.pop(trial.number, None)
        if configuration is not None and state != TrialState.RUNNING:
            self._tuner_of(study).tell(configuration, values[0] if values and state == TrialState.COMPLETE else None)

    def reseed_rng(self) -> None:
        """Change the seed of the random values."""
        self._random.reseed_rng()

    def _tuner_of(self, study: Study) -> Tuner:
        """Return the tuner; a new one gets the results of the study's earlier trials."""
        if self._tuner is None:
            self._tuner = Tuner(*self._arguments, seed=self._seed)
            for trial in study.get_trials(deepcopy=False):
                if trial.state in (TrialState.COMPLETE, TrialState.FAIL, TrialState.PRUNED) and trial.params:
                    with suppress(InputError):  # the kernel has no such parameter or value
                        self._tuner.tell(trial.params, trial.value if trial.state == TrialState.COMPLETE else None)
        return self._tuner
