"""A sampler for Optuna: ``optuna.create_study(sampler=surrogate.tuning.Sampler("B", gpu="a100"))``.

The objective suggests the kernel's parameters by their names and returns a time, or a rate in a study that maximises.
The first trials are the configurations with the shortest expected times. Later ones also use the results of all trials
of the study, including those of other samplers and workers. The storage is the only state that workers share: a trial's
proposal is written to it.
"""

import threading
from collections.abc import Callable, Mapping
from functools import cache
from math import isfinite, nan
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import optuna
import pandas as pd
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import RandomSampler
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from surrogate.features import InputError, nearest
from surrogate.tuning.tuner import KernelSource, SearchSpace, build_space, open_kernel_source

PROPOSED = "surrogate:proposed"
"""System attribute of a trial: the text of the configuration that was proposed for it."""
MAX_CONFLICTS = 8
"""Maximum number of new proposals for a trial whose configuration another worker proposed at the same time."""
MAX_TIME = 1e300
"""Maximum time that the search gets; its inverse is the minimum."""
_LOG = optuna.logging.get_logger("optuna")


class Sampler(RandomSampler):
    """An Optuna sampler that proposes configurations of a kernel.

    A study has one objective, which it minimises or maximises. A configuration fails if its trial fails or if its value
    is infinite; a pruned trial counts as failed. A value is random, with one warning, if the kernel lacks the parameter
    or all values of its distribution. Configurations repeat, with one warning, if all of them were proposed.

    Parameters
    ----------
    source, gpu, problem, seed
        The arguments of `surrogate.tuning.Tuner`.

    Raises
    ------
    InputError
        If the arguments contradict each other, or if the bundle or the problem cannot be used. Sampling raises it if
        the study has several objectives.
    """

    def __init__(self, source: KernelSource, gpu: str = "", problem: object = None, *, seed: int = 0) -> None:
        self.__setstate__((build_space(open_kernel_source(source), gpu, problem, None), seed))

    def __getstate__(self) -> tuple[SearchSpace, int]:
        """Return the space and the seed; a copy reads the trials of its study anew."""
        return self._space, self._seed

    def __setstate__(self, state: tuple[SearchSpace, int]) -> None:
        self._space, self._seed = state
        super().__init__(self._seed)
        self._searches: WeakKeyDictionary[Study, StudySearch] = WeakKeyDictionary()
        self._lock = threading.Lock()

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return a value for each parameter of the space."""
        check_objective(study)
        return {name: self.sample_independent(study, trial, name, each) for name, each in search_space.items()}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Return a parameter's value in the configuration of the trial."""
        check_objective(study)
        study = getattr(study, "_study", study)  # for `HyperbandPruner`, the study is a view of another one
        with self._lock:
            if study not in self._searches:
                self._searches[study] = StudySearch(self._space, self._seed, super().sample_independent)
            return self._searches[study].value(study, trial, param_name, param_distribution)


class StudySearch:
    """The search of one study: it learns from the study's trials and proposes a configuration for each new one."""

    def __init__(self, space: SearchSpace, seed: int, random: Callable[..., Any]) -> None:
        self._space = space
        self._columns = dict(zip(space.description.parameters, space.parameters.T, strict=True))
        self._position_of = {text: position for position, text in enumerate(space.texts)}
        self._search = space.new_search(seed)
        self._random, self._generator = random, np.random.default_rng(seed)
        self._warn = cache(_LOG.warning)
        self._configuration_of: dict[int, int] = {}
        self._costs: dict[int, float] = {}
        self._distributions: dict[str, BaseDistribution] = {}
        self._covered = np.zeros(len(space.texts), dtype=bool)

    def value(self, study: Study, trial: FrozenTrial, name: str, distribution: BaseDistribution) -> Any:
        """Return a parameter's value in a configuration that has the trial's other values, if the kernel has them.

        It is random, with a warning, if no such configuration has a value in the distribution.
        """
        fits = self._within({name: distribution}) & (name in self._columns)
        fixed = getattr(study.sampler, "_fixed_params", {})  # `PartialFixedSampler` does not pass its values on
        for other, value in {**fixed, **values_of(trial)}.items():
            has_value = self._having({other: value})
            fits &= has_value if other != name and has_value.any() else True
        if not fits.any():
            hint = "" if name in self._columns else nearest(name, self._columns)
            self._warn(f"{name} is drawn at random, since the kernel has no such parameter or value{hint}")
            return self._random(study, trial, name, distribution)
        position = self._configuration_of.get(trial.number)
        if position is None or not fits[position]:
            position = self._propose(study, trial, fits)
        return self._values(name, distribution)[float(self._columns[name][position])]

    def _propose(self, study: Study, trial: FrozenTrial, fits: np.ndarray) -> int:
        """Return the position of a configuration that fits, and write it to the trial."""
        self._read(study)
        # The distributions of earlier trials show which values the objective allows for other parameters.
        preferred = fits & self._within(self._distributions)
        position = rank = 0
        for _ in range(MAX_CONFLICTS):
            position = self._next(preferred if preferred.any() else fits, 1 + rank)
            earlier = self._trials_of(position)
            self._configuration_of[trial.number] = position
            study._storage.set_trial_system_attr(trial._trial_id, PROPOSED, self._space.texts[position])
            self._read(study)
            rivals = self._trials_of(position) - earlier - {trial.number}
            if not rivals:
                break
            rank = sum(number < trial.number for number in rivals)  # so that the next proposals of rivals differ
        return position

    def _next(self, fits: np.ndarray, count: int) -> int:
        """Return the last of ``count`` most promising configurations; a random one if all of them were proposed."""
        fresh = fits & ~self._covered
        found = self._search.ask(count, fresh)
        if not len(found):  # the trials of some proposals got other values
            self._search.restore({at for number, at in self._configuration_of.items() if number not in self._costs})
            found = self._search.ask(count, fresh)
        if not len(found):
            self._warn("all configurations of the kernel that fit this trial were proposed; they repeat now")
            found = self._search.ask(count, fits)
        return int(found[-1] if len(found) else self._generator.choice(np.flatnonzero(fits)))

    def _trials_of(self, position: int) -> set[int]:
        return {number for number, at in self._configuration_of.items() if at == position}

    def _read(self, study: Study) -> None:
        """Read the trials that are new or that were unfinished when they were last read."""
        trials = [trial for trial in study.get_trials(deepcopy=False) if trial.number not in self._costs]
        for trial in trials:
            self._distributions |= trial.distributions
            position = self._position(trial)
            if position is not None:
                self._configuration_of[trial.number] = position
            if trial.state.is_finished():
                is_complete = trial.state == TrialState.COMPLETE
                value = trial.value if is_complete and trial.value is not None and isfinite(trial.value) else nan
                self._costs[trial.number] = value * (-1 if study.direction == StudyDirection.MAXIMIZE else 1)
                if position is None:
                    self._configuration_of.pop(trial.number, None)
                elif is_complete:  # configurations that differ only in other parameters give the same trial
                    self._covered |= self._having(values_of(trial))
        if any(trial.number in self._costs for trial in trials):
            positions = pd.Series(self._configuration_of, dtype=float)
            costs = pd.Series(self._costs, dtype=float).groupby(positions).median()
            self._search.tell_all(dict(zip(costs.index.astype(int).tolist(), times_of(costs.to_numpy()), strict=True)))
        for trial in trials:  # the configurations of finished trials have a time, so this adds only running ones
            if trial.number in self._configuration_of:
                self._search.propose(self._configuration_of[trial.number])

    def _position(self, trial: FrozenTrial) -> int | None:
        """Return the position of a trial's configuration; None if its values show none."""
        values = values_of(trial)
        fits = self._having(values)
        proposed = self._position_of.get(trial.system_attrs.get(PROPOSED, ""))
        if proposed is not None and fits[proposed]:
            return proposed
        own = values.keys() & self._columns.keys()
        is_known = len(own) == len(self._columns) or (own and trial.state.is_finished())
        return int(np.argmax(fits)) if is_known and fits.any() else None

    def _having(self, values: Mapping[str, object]) -> np.ndarray:
        """Return (n,) whether each configuration has the values; other names than the kernel's are ignored."""
        return self._with_codes({name: [self._code(name, values[name])] for name in self._columns if name in values})

    def _within(self, distributions: Mapping[str, BaseDistribution]) -> np.ndarray:
        """Return (n,) whether the distributions contain each configuration's values; other names are ignored."""
        names = [name for name in self._columns if name in distributions]
        return self._with_codes({name: [*self._values(name, distributions[name])] for name in names})

    def _with_codes(self, codes: Mapping[str, list[float]]) -> np.ndarray:
        """Return (n,) whether each configuration has one of the codes of each parameter."""
        masks = [np.isin(self._columns[name], each) for name, each in codes.items()]
        return np.all([np.ones_like(self._covered), *masks], axis=0)

    def _values(self, name: str, distribution: BaseDistribution) -> dict[float, Any]:
        """Return code → value of the parameter's values that the distribution contains."""
        if isinstance(distribution, CategoricalDistribution):
            return {self._code(name, choice): choice for choice in distribution.choices}
        codes = self._space.description.codes[name].values() if self._space.description.is_numeric(name) else ()
        return {code: distribution.to_external_repr(code) for code in codes if distribution._contains(code)}

    def _code(self, name: str, value: Any) -> float:
        """Return the number of a value in the table of parameters; NaN if the kernel has no such value."""
        description = self._space.description
        is_number = isinstance(value, int | float | np.number) and description.is_numeric(name)
        return description.codes[name].get(str(value), float(value) if is_number else nan)


def values_of(trial: FrozenTrial) -> dict[str, Any]:
    """Return parameter → value of a trial, with enqueued values that it did not use yet."""
    return {**trial.system_attrs.get("fixed_params", {}), **trial.params}


def times_of(costs: np.ndarray) -> list[float | None]:
    """Return the times of configurations from their costs, which are NaN if all trials failed; their times are None.

    The order of the times is that of the costs. Negative costs are rates, whose inverses are times. If costs have both
    signs, the times depend on ranks only.
    """
    ran = ~np.isnan(costs)
    cost = np.clip(costs[ran], -MAX_TIME, MAX_TIME)
    if (cost > 0).all():
        times = cost
    elif (cost <= 0).all():
        times = -1.0 / np.minimum(cost, -1.0 / MAX_TIME)
    else:
        times = 1.0 + 2.0 * np.searchsorted(np.sort(cost), cost) / len(cost)
    found = np.full(len(costs), None, dtype=object)
    found[ran] = np.maximum(times, 1.0 / MAX_TIME)
    return found.tolist()


def check_objective(study: Study) -> None:
    """Raise `InputError` if the study has several objectives."""
    if (count := len(study.directions)) > 1:
        raise InputError(f"the study has {count} objectives; surrogate.tuning.Sampler needs one direction")
