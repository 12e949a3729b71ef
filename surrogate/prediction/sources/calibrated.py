"""A calibrated source: another source's times, multiplied by the correction that a calibration found on the GPU."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from surrogate.prediction.sources.source import Source, Times

if TYPE_CHECKING:
    from surrogate.models.times import Correction


@dataclass(frozen=True, slots=True)
class CalibratedSource(Source):
    """Times of ``source``, multiplied by a ``correction``."""

    source: Source
    correction: "Correction"

    def times(self, sizes: np.ndarray, problem: np.ndarray, index: np.ndarray) -> Times:
        """As `Source.times`."""
        from surrogate.models.times import correction_columns

        setting, _, candidates, formula, min_us = self.context
        family = setting.family
        times = self.source.times(sizes, problem, index)
        # The correction's columns (rows, inputs): those of the setting, of the problems, of the candidates.
        names = (*family.problem_names, *family.candidate_names)
        columns = dict(zip(names, self.inputs(sizes, problem, index)[0].T, strict=True))
        columns |= zip(family.constant_names, formula.constant, strict=True)
        needed = correction_columns(family)
        x = np.empty((len(index), len(needed)), dtype=np.float32)
        for place, name in enumerate(needed):
            x[:, place] = columns[name]
        keys = np.array([candidate.key for candidate in candidates], dtype=object)[index]
        factor = np.exp(self.correction.log_factor(x, keys, times.time_us))
        return times._replace(time_us=np.maximum(times.time_us * factor, min_us[index]))
