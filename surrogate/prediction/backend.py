"""Which of numpy, ONNX Runtime and XGBoost answers, chosen once per bundle and checked once per setting."""

import hashlib
import threading
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Any

import numpy as np

from surrogate.features.errors import InputError, nearest
from surrogate.models.booster_file import UnsupportedTreesError, native_booster
from surrogate.prediction.hot import VARYING, HotSetting
from surrogate.prediction.onnx_forest import MAX_LOG_DIFFERENCE, OnnxForest
from surrogate.prediction.parts import Parts, parts_of
from surrogate.prediction.scorers import BoosterScorer, FastScorer, ForestScorer, worst_difference

BACKENDS = ("auto", "numpy", "onnx", "xgboost")
FAST_MODULES = ("onnx", "onnxruntime")
_CHECKED: dict[bytes, float] = {}
"""Hash of a forest → largest difference found; a forest is checked once in a process."""


@dataclass(slots=True)
class Backend:
    """``name`` is what answers: ``numpy``, ``onnx``, ``xgboost``, or ``table`` for a model that is no single booster.

    ``notes`` say why it is not what was asked for. ``parts`` is None for ``table``.
    """

    name: str
    parts: Parts | None
    notes: list[str] = field(default_factory=list)
    _booster: Any = None
    _lock: Any = field(default_factory=threading.Lock, repr=False)

    def accelerate(self, hot: HotSetting) -> HotSetting:
        """The setting with this backend's scorer; numpy's where ONNX Runtime does not agree with XGBoost."""
        if self.name == "xgboost":
            return replace(hot, scorer=self._booster_scorer(hot))
        if self.name == "onnx":
            return replace(hot, scorer=FastScorer(hot.forest, lambda: self._checked(hot)))
        return hot

    def _checked(self, hot: HotSetting) -> OnnxForest | None:
        """ONNX Runtime on the setting's forest; None, with a note, where it does not agree with XGBoost."""
        fast = OnnxForest.of(hot.forest)
        difference = self._difference(hot, fast)
        if difference <= MAX_LOG_DIFFERENCE:
            return fast
        self.notes.append(
            f"ONNX Runtime differs from XGBoost by {difference:.1e} in log time"
            f" (allowed: {MAX_LOG_DIFFERENCE:.0e}); numpy answers"
        )
        return None

    def _difference(self, hot: HotSetting, fast: OnnxForest) -> float:
        forest = hot.forest
        digest = hashlib.sha256(hot.template.tobytes())
        for array in (forest.feature, forest.threshold, forest.child, forest.leaf, forest.missing_left):
            digest.update(array.tobytes())
        key = digest.digest()
        if key not in _CHECKED:
            exact = self._booster_scorer(hot)
            _CHECKED[key] = worst_difference(forest, hot.template, len(VARYING), ForestScorer(fast), exact)
        return _CHECKED[key]

    def _booster_scorer(self, hot: HotSetting) -> BoosterScorer:
        column = {name: place for place, name in enumerate(hot.parts.columns)}
        places = [(source, column[name]) for source, name in enumerate(VARYING) if name in column]
        source, target = np.array(places).T
        template = np.zeros((len(hot.candidates), len(column) + 1), dtype=np.float32)
        for name, value in hot.constant.items():
            if name in column:
                template[:, column[name]] = value
        template[:, -1] = [candidate.code for candidate in hot.candidates]
        return BoosterScorer(self._xgboost(hot.parts.booster), template, source, target)

    def _xgboost(self, content: bytes) -> Any:
        """A booster of our own: on one thread, since threads cost more than a few rows do."""
        with self._lock:
            if self._booster is None:
                self._booster = native_booster(content)
            return self._booster


def backend_for(model: Any, wanted: str = "auto") -> Backend:
    """``auto`` is ONNX Runtime where it is installed (`pip install 'seer-surrogate[fast]'`), else numpy.

    Raises `InputError` for an unknown backend, or for ``onnx`` where it is not installed.
    """
    if wanted not in BACKENDS:
        raise InputError(
            f"backend {wanted!r} is unknown; known: {', '.join(BACKENDS)}{nearest(wanted, BACKENDS)}"
        )
    missing = [name for name in FAST_MODULES if find_spec(name) is None]
    if wanted == "onnx" and missing:
        raise InputError(
            f"backend onnx needs {' and '.join(missing)}; install them by `pip install 'seer-surrogate[fast]'`"
        )
    try:
        parts = parts_of(model)
    except UnsupportedTreesError as error:
        return Backend("table", None, [f"{error}; the model itself answers, by way of a table"])
    if wanted == "auto":
        return Backend("numpy" if missing else "onnx", parts)
    return Backend(wanted, parts)
