"""`calibrated`: a fitted model, and for each calibrated device a correction learned from a few measurements there."""

import json
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np

from surrogate.dataset.problems import device_names
from surrogate.dataset.rows import Rows
from surrogate.features.errors import InputError
from surrogate.models.base import Model
from surrogate.models.columns import candidate_names
from surrogate.models.correction import Correction

_BASE = "base."


class Calibrated:
    """Times of ``base``, multiplied by the correction of their device; other devices' times are the base's own."""

    name: ClassVar[str] = "calibrated"
    predicts_time: ClassVar[bool] = True

    def __init__(self, **params: Any) -> None:
        self.params: Mapping[str, Any] = params
        self._base: Model | None = None
        self.corrections: Mapping[str, Correction] = {}
        """Device's registry name → its correction."""

    @classmethod
    def on(cls, base: Model, corrections: Mapping[str, Correction]) -> Self:
        """``base`` with corrections; those of a base that is calibrated itself stay, unless replaced."""
        earlier: Mapping[str, Correction] = {}
        if isinstance(base, Calibrated):
            base, earlier = base.base, base.corrections
        model = cls(base=base.name, base_params=dict(base.params))
        model._base = base
        model.corrections = {**earlier, **corrections}
        return model

    @property
    def base(self) -> Model:
        """The model that is corrected."""
        if self._base is None:
            raise InputError("a calibrated model is made by `seer calibrate BUNDLE DATA`, not by training")
        return self._base

    @property
    def _candidates(self) -> Mapping[str, int]:
        """What the base can choose among, where it keeps a list: serving asks for it."""
        return getattr(self.base, "_candidates", {})

    def fit(self, rows: Rows, *, seed: int = 0) -> Self:
        """Not by training: raises `InputError` that names the command."""
        del rows, seed
        raise InputError(
            "a calibrated model is made by `seer calibrate BUNDLE DATA`; train another, then calibrate it"
        )

    def predict_us(self, rows: Rows) -> np.ndarray:
        """Times in µs, (rows,)."""
        times = self.base.predict_us(rows)
        devices = device_names(rows.frame)
        for device, correction in self.corrections.items():
            mine = np.flatnonzero((devices == device) & np.isfinite(times))
            if len(mine):
                part = rows.take(mine)
                factor = correction.log_factor(part.features, candidate_names(part), times[mine])
                times[mine] *= np.exp(factor)
        return times

    def save(self) -> dict[str, bytes]:
        """The base's files under ``base.``, the corrections as JSON, their trees as UBJ."""
        files = {f"{_BASE}{name}": content for name, content in self.base.save().items()}
        table = {}
        for place, (device, correction) in enumerate(self.corrections.items()):
            values, trees = correction.save()
            table[device] = {**values, "trees": None if trees is None else f"correction.{place}.ubj"}
            if trees is not None:
                files[f"correction.{place}.ubj"] = trees
        return {**files, "corrections.json": json.dumps(table).encode()}

    @classmethod
    def load(cls, params: Mapping[str, Any], files: Mapping[str, bytes]) -> Self:
        """What `save` wrote."""
        from surrogate.models import model_class

        inner = {n.removeprefix(_BASE): c for n, c in files.items() if n.startswith(_BASE)}
        model = cls(**params)
        model._base = model_class(params["base"]).load(params["base_params"], inner)
        model.corrections = {
            device: Correction.load(values, files[values["trees"]] if values["trees"] else None)
            for device, values in json.loads(files["corrections.json"]).items()
        }
        return model

    @staticmethod
    def space(trial: Any) -> dict[str, Any]:
        """Nothing to tune."""
        del trial
        return {}
