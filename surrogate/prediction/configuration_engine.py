"""Answers about a described kernel: all its configurations on a problem in one pass, and a table row by row."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import ClassVar, Self

import numpy as np
import pandas as pd

from surrogate.bundle.bundle import Part
from surrogate.dataset.described import KernelColumns, described_frame
from surrogate.dataset.problems import device_names
from surrogate.dataset.rows import rows_of
from surrogate.features.elementwise import Number
from surrogate.features.families import AnyProblem, DescribedFamily, DescribedProblem
from surrogate.features.gpu import Gpu
from surrogate.models import TimeModel
from surrogate.models.configurations import LIKELY, Configurations
from surrogate.prediction.engine import EXPECTED_TO_FAIL, FAILED, Context, Engine
from surrogate.prediction.results import MEASURED, MEASURED_HALF_WIDTH, MODEL, OTHERS, Predictions
from surrogate.uncertainty.domain import distances_to


@dataclass(frozen=True, slots=True)
class ConfigurationEngine(Engine):
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

    def measured(self, problem: AnyProblem, wanted: Sequence[int]) -> frozenset[int]:
        """As `Engine.measured`: what the training table holds."""
        key = self._key(problem.values if isinstance(problem, DescribedProblem) else ())
        positions = np.array(wanted, dtype=np.int64)
        return frozenset(positions[self.model.measured(key, self.known[positions])].tolist())

    def least_us(self, problem: AnyProblem) -> float:
        """As `Engine.least_us`."""
        assert isinstance(problem, DescribedProblem)
        return self.model.least_us(self._key(problem.values), problem, self.context.device)

    def failures(self, problem: AnyProblem, failing: Sequence[int]) -> list[str]:
        """As `Engine.failures`."""
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

    def many(self, sizes: np.ndarray, problem: np.ndarray, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """As `Engine.many`; infinite for a configuration that is expected to fail or that the conditions rule out."""
        setting, _, _, formula, least_us = self.context
        time_us = np.empty(len(index))
        constant = np.array(formula.constant, dtype=np.float32)
        for number in np.unique(problem).tolist():
            rows = np.flatnonzero(problem == number)
            asked = setting.problem(sizes[number].tolist())
            terms = formula.problem(asked)
            parameters = self.parameters[index[rows]]
            own = np.column_stack(
                [np.broadcast_to(column, len(rows)) for column in formula.candidate(terms, parameters)[0]]
            ).astype(np.float32)
            columns = np.concatenate([np.array(terms.values, dtype=np.float32), constant])
            answer, failure = self.model.answers(
                self._key(asked.values),
                asked,
                self.context.device,
                columns,
                parameters,
                own[:, parameters.shape[1] :],
                self.known[index[rows]],
            )
            runs = (failure < LIKELY) & ~np.any([*self._refusals(asked, index[rows]).values()], axis=0)
            time_us[rows] = np.where(runs, np.maximum(answer, least_us[index[rows]]), inf)
        return time_us, np.zeros(len(index))


def predict_configurations(
    part: Part, family: DescribedFamily, table: pd.DataFrame, device: Callable[[str], Gpu]
) -> Predictions:
    """Predictions for every row of a table with gpu, the sizes and the parameters; a time that it holds is not read.

    ``device`` gives a GPU by its name.

    Raises `InputError` for a missing column and for a cell that is no value of its parameter.
    """
    plain = table.drop(columns=[name for name in ("time_us", "status") if name in table])
    # Values that training never saw are numbers like others, out of domain.
    described = KernelColumns.like(family.description).of(plain, "the table")
    frame = described_frame(plain.assign(time_us=1.0), described, "the table")
    rows = rows_of(frame, DescribedFamily(described), {name: device(name) for name in frame["gpu"].unique()})
    known_values = np.all(
        [frame[name].isin(values) | frame[name].isna() for name, values in family.description.parameters.items()],
        axis=0,
    )
    model = part.model
    least_us, measured = np.zeros(len(rows)), np.full(len(rows), False)
    runs = np.full(len(rows), True)
    if isinstance(model, Configurations):
        predicted_us, failure, least_us, is_measured = model.of_rows(rows).T
        measured = is_measured > 0
        runs = failure < LIKELY
    else:
        predicted_us = model.predict(rows)
    gpus = device_names(frame)
    seen = np.isin(gpus, sorted(part.domain.gpus))
    growth = part.domain.growth(rows.sizes)
    distance = distances_to(part.domain.references, rows)
    half = part.widths.at(gpus, rows.candidate, np.full(len(rows), ""), distance, predicted_us)
    half = np.where(seen, half, part.unseen_gpu.by_kind[""].half_width) + growth
    factor = np.exp(np.where(measured, MEASURED_HALF_WIDTH, half))
    return Predictions(
        library=frame["library"].to_numpy(dtype=object),
        algorithm=frame["algorithm"].to_numpy(dtype=object),
        predicted_us=predicted_us,
        lower_us=np.minimum(predicted_us, np.maximum(predicted_us / factor, least_us)),
        upper_us=predicted_us * factor,
        in_domain=seen & (growth == 0) & known_values,
        supported=runs,
        workspace_bytes=np.full(len(rows), np.nan),
        source=np.where(measured, MEASURED, np.where(seen, MODEL, OTHERS)).astype(object),
    )
