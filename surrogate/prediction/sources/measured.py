"""Times of a described kernel, from its measurements and from a model of the unmeasured configurations."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from surrogate.features import Number
from surrogate.features.families import AnyProblem, DescribedFamily, DescribedProblem
from surrogate.models import TimeModel
from surrogate.models.configurations import LIKELY, Configurations
from surrogate.prediction.results import MEASURED, MEASURED_HALF_WIDTH
from surrogate.prediction.sources.source import EXPECTED_TO_FAIL, Context, Source, Times

FAILED = "failed in its measurement"


@dataclass(frozen=True, slots=True)
class ConfigurationSource(Source):
    """Times of a `Configurations` model in one setting.

    ``parameters`` (candidates, parameters) are the values of all candidates. ``numbers`` (candidates,) are the
    candidates' numbers in the model.
    """

    MODEL: ClassVar[str] = Configurations.name
    model: Configurations
    parameters: np.ndarray
    numbers: np.ndarray

    @classmethod
    def of(cls, context: Context, model: TimeModel) -> Self:
        """Return the source with the context's candidates."""
        family = context.setting.family
        assert isinstance(family, DescribedFamily)
        assert isinstance(model, Configurations)
        texts = [candidate.solver for candidate in context.candidates]
        numbers = model.numbers([candidate.key for candidate in context.candidates])
        return cls(context, model, family.configurations(texts), numbers)

    def min_us(self, problem: AnyProblem) -> float:
        """Implement `Source.min_us`."""
        assert isinstance(problem, DescribedProblem)
        return self.model.min_us(self._key(problem.values), problem, self.context.device)

    def failures(self, problem: AnyProblem, failing: Sequence[int]) -> list[str]:
        """Implement `Source.failures`."""
        assert isinstance(problem, DescribedProblem)
        index = np.array(failing, dtype=np.int64)
        number = self.model.problem_numbers.get(self._key(problem.values))
        reasons = np.full(len(index), EXPECTED_TO_FAIL, dtype=object)
        for reason, refused in self._refusals(problem, index).items():
            reasons[refused] = reason
        if number is not None:
            reasons[np.append(np.isinf(self.model.times_us_[number]), False)[self.numbers[index]]] = FAILED
        return reasons.tolist()

    def _refusals(self, problem: DescribedProblem, index: np.ndarray) -> dict[str, np.ndarray]:
        """Return reason → mask of the candidates at ``index`` that it refuses."""
        return self.model.refusals(problem, self.context.device, self.parameters[index], self.numbers[index])

    def _key(self, values: Sequence[Number]) -> str:
        """Return the model's name of the problem of these sizes."""
        setting = self.context.setting
        return "|".join(map(str, (setting.gpu, *setting.values, *values)))

    def times(self, sizes: np.ndarray, problem_of_row: np.ndarray, candidate_of_row: np.ndarray) -> Times:
        """Implement `Source.times`; a configuration that the kernel's conditions rule out fails."""
        setting, _, _, formula, min_us = self.context
        time_us = np.empty(len(candidate_of_row))
        half_width, fails = np.full(len(candidate_of_row), np.nan), np.full(len(candidate_of_row), False)
        constant = np.array(formula.constant, dtype=np.float32)
        for number in np.unique(problem_of_row).tolist():
            rows = np.flatnonzero(problem_of_row == number)
            query = setting.problem(sizes[number].tolist())
            key = self._key(query.values)
            terms = formula.problem(query)
            parameters = self.parameters[candidate_of_row[rows]]
            parts = [np.broadcast_to(column, len(rows)) for column in formula.candidate(terms, parameters)[0]]
            own = np.column_stack(parts).astype(np.float32)
            columns = np.concatenate([np.array(terms.values, dtype=np.float32), constant])
            launch = own[:, parameters.shape[1] :]
            numbers = self.numbers[candidate_of_row[rows]]
            answer, failure = self.model.answers(key, query, self.context.device, columns, parameters, launch, numbers)
            refused = np.any([*self._refusals(query, candidate_of_row[rows]).values()], axis=0)
            time_us[rows] = np.maximum(answer, min_us[candidate_of_row[rows]])
            half_width[rows[self.model.measured(key, numbers)]] = MEASURED_HALF_WIDTH
            fails[rows] = (failure >= LIKELY) | refused
        return Times(time_us, np.zeros(len(candidate_of_row)), half_width, MEASURED, fails)
