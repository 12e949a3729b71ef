"""TPE whose k-th proposal depends on the seed, k and the study so far: interrupted and resumed, it stays the same."""

import warnings
from collections.abc import Sequence
from typing import Any

from optuna.distributions import BaseDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler, TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

COUNTED = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.RUNNING)
"""States of trials that count: what failed was interrupted, and its settings wait to be tried again."""


def rank(study: Study, trial_number: int) -> int:
    """How many counted trials of the study came before the one of that number."""
    trials = study.get_trials(deepcopy=False, states=COUNTED)
    return sum(trial.number < trial_number for trial in trials)


class RankedTPE(BaseSampler):
    """A TPE sampler seeded anew for each trial with (seed, rank), so that workers sharing a study differ as well."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._sampler = self._seeded(0)

    def _seeded(self, place: int) -> TPESampler:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)  # optuna 4 calls constant_liar experimental
            return TPESampler(seed=(self._seed * 1_000_003 + place * 7_919) % 2**32, constant_liar=True)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        """Seed the sampler for this trial."""
        self._sampler = self._seeded(rank(study, trial.number))

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """TPE's own."""
        return self._sampler.infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """TPE's own."""
        return self._sampler.sample_relative(study, trial, search_space)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """TPE's own."""
        return self._sampler.sample_independent(study, trial, param_name, param_distribution)

    def after_trial(
        self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None
    ) -> None:
        """TPE's own."""
        self._sampler.after_trial(study, trial, state, values)
