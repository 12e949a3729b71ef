"""How times come out of a model: the hot path for one booster, a table of one problem for every other model."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from surrogate.features.conv import Conv
from surrogate.features.gpu import Gpu
from surrogate.features.machine import b_max
from surrogate.features.problem import SIZE_COLUMNS
from surrogate.features.terms import MECHANISM_TERMS, sized
from surrogate.prediction.setting import Candidate, Setting

Sizes = np.ndarray


class Engine(Protocol):
    """Times in µs (NaN where the model does not apply) and workspaces in bytes of a setting's candidates."""

    def one(self, conv: Conv, wanted: Sequence[int]) -> tuple[list[float], list[float]]:
        """Of the candidates at ``wanted``, for one problem."""
        ...

    def many(self, sizes: Sizes, problem: np.ndarray, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of candidate ``index[i]`` for problem ``problem[i]`` of ``sizes`` (problems, 14), each (rows,)."""
        ...


class TableEngine:
    """Asks any `Model` by way of a table: milliseconds a call, right for all."""

    def __init__(self, model: Any, setting: Setting, device: Gpu, candidates: tuple[Candidate, ...]) -> None:
        self.model = model
        self.setting = setting
        self.device = device
        self.candidates = candidates

    def one(self, conv: Conv, wanted: Sequence[int]) -> tuple[list[float], list[float]]:
        """As `Engine.one`."""
        z = sized(conv)
        mechanisms = [self.candidates[i].mechanism for i in wanted]
        workspace = [MECHANISM_TERMS[f](z, b_max(self.device, f)).workspace_bytes for f in mechanisms]
        sizes = np.array([conv.sizes])
        time_us = self._times(sizes, np.zeros(len(mechanisms), dtype=int), np.array(wanted, dtype=int))
        return time_us.tolist(), workspace

    def many(self, sizes: Sizes, problem: np.ndarray, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """As `Engine.many`."""
        from surrogate.features.problem import ConvColumns

        s = self.setting
        columns = ConvColumns.of(
            list(sizes.T), dtype=s.dtype, math=s.math, layout=s.layout, direction=s.direction
        )
        workspace = np.empty(len(index))
        for one in np.unique(index):
            rows = np.flatnonzero(index == one)
            mechanism = self.candidates[one].mechanism
            terms = MECHANISM_TERMS[mechanism](columns.take(problem[rows]), b_max(self.device, mechanism))
            workspace[rows] = terms.workspace_bytes
        return self._times(sizes, problem, index), workspace

    def _times(self, sizes: Sizes, problem: np.ndarray, index: np.ndarray) -> np.ndarray:
        import pandas as pd

        from surrogate.dataset.rows import rows_of

        s = self.setting
        frame = pd.DataFrame(sizes[problem], columns=list(SIZE_COLUMNS))
        for name in ("gpu", "library", "library_version", "direction", "dtype", "math", "layout"):
            frame[name] = getattr(s, name)
        frame["algorithm"] = [self.candidates[i].algorithm for i in index]
        if any(candidate.solver for candidate in self.candidates):
            frame["solver"] = [self.candidates[i].solver for i in index]
        return self.model.predict_us(rows_of(frame, {s.gpu: self.device}))
