"""A described kernel: its table of measurements, and a model of the configurations that the table lacks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from surrogate.features.elementwise import Number
from surrogate.features.families import AnyProblem, DescribedFamily, DescribedProblem
from surrogate.models import TimeModel
from surrogate.models.configurations import LIKELY, Configurations
from surrogate.prediction.sources.source import EXPECTED_TO_FAIL, Context, Source, Times

FAILED = "failed when it was measured"


@dataclass(frozen=True, slots=True)
class ConfigurationSource(Source):
    """A `Configurations` model in one setting.

    ``parameters`` (candidates, parameters) of all candidates, and ``known`` (candidates,) their numbers in the model.
    """

    MODEL: ClassVar[str] = Configurations.name
    model: Configurations
    parameters: np.ndarray
    known: np.ndarray

    @classmethod
    def of(cls, context: Context, model: TimeModel) -> Self:
        """With the context's candidates."""
        family = context.setting.family
        assert isinstance(family, DescribedFamily)
        assert isinstance(model, Configurations)
        texts = [candidate.solver for candidate in context.candidates]
        known = model.numbers([candidate.key for candidate in context.candidates])
        return cls(context, model, family.configurations(texts), known)

    def min_us(self, problem: AnyProblem) -> float:
        """As `Source.min_us`."""
        assert isinstance(problem, DescribedProblem)
        return self.model.min_us(self._key(problem.values), problem, self.context.device)

    def failures(self, problem: AnyProblem, failing: Sequence[int]) -> list[str]:
        """As `Source.failures`."""
        assert isinstance(problem, DescribedProblem)
        index = np.array(failing, dtype=np.int64)
        number = self.model.places[1].get(self._key(problem.values))
        reasons = np.full(len(index), EXPECTED_TO_FAIL, dtype=object)
        for reason, refused in self._refusals(problem, index).items():
            reasons[refused] = reason
        if number is not None:
            reasons[np.append(np.isinf(self.model.times_us_[number]), False)[self.known[index]]] = FAILED
        return reasons.tolist()

    def _refusals(self, problem: DescribedProblem, index: np.ndarray) -> dict[str, np.ndarray]:
        """`Configurations.refusals` of the candidates at ``index``."""
        return self.model.refusals(problem, self.context.device, self.parameters[index], self.known[index])

    def _key(self, values: Sequence[Number]) -> str:
        """The problem of these sizes, as the model names it."""
        setting = self.context.setting
        return "|".join(map(str, (setting.gpu, *setting.values, *values)))

    def times(self, sizes: np.ndarray, problem: np.ndarray, index: np.ndarray) -> Times:
        """As `Source.times`; a configuration that the conditions rule out fails."""
        setting, _, _, formula, min_us = self.context
        time_us = np.empty(len(index))
        measured, fails = np.full((2, len(index)), False)
        constant = np.array(formula.constant, dtype=np.float32)
        for number in np.unique(problem).tolist():
            rows = np.flatnonzero(problem == number)
            query = setting.problem(sizes[number].tolist())
            key = self._key(query.values)
            terms = formula.problem(query)
            parameters = self.parameters[index[rows]]
            own = np.column_stack(
                [np.broadcast_to(column, len(rows)) for column in formula.candidate(terms, parameters)[0]]
            ).astype(np.float32)
            columns = np.concatenate([np.array(terms.values, dtype=np.float32), constant])
            launch = own[:, parameters.shape[1] :]
            known = self.known[index[rows]]
            answer, failure = self.model.answers(key, query, self.context.device, columns, parameters, launch, known)
            refused = np.any([*self._refusals(query, index[rows]).values()], axis=0)
            time_us[rows] = np.maximum(answer, min_us[index[rows]])
            measured[rows] = self.model.measured(key, known)
            fails[rows] = (failure >= LIKELY) | refused
        return Times(time_us, np.zeros(len(index)), measured, fails)
