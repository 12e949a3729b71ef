"""What the hot path takes out of a fitted model: its trees, columns, candidate codes and base time."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from surrogate.models.booster_file import UnsupportedTreesError
from surrogate.prediction.trees import Trees

FILES = {"booster.ubj", "candidates.json"}
"""What a model of one booster consists of on disk."""


@dataclass(frozen=True, slots=True)
class Parts:
    """One booster on the log of time over a base: ``columns`` then the candidate's code are its inputs.

    ``codes`` candidate (``library|direction|algorithm[|solver]``) → code; ``base_us`` takes `HotRows` and gives the
    time (rows,) in µs that the exponential of the trees' sum multiplies; ``booster`` is the UBJ file. Where a Gaussian
    process shares in the answer, ``process`` is that model and ``process_share`` its weight. ``corrections`` are those
    of calibrated devices by their registry names.
    """

    trees: Trees
    columns: tuple[str, ...]
    codes: Mapping[str, int]
    base_us: Callable[[Any], np.ndarray]
    booster: bytes
    process: Any = None
    process_share: float = 0.0
    corrections: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HotRows:
    """As much of `surrogate.dataset.rows.Rows` as a base time needs."""

    features: np.ndarray
    places: Mapping[str, int]
    roofline_us: Any

    def column(self, name: str) -> np.ndarray:
        """One feature by name (rows,) float32; `KeyError` for one that does not vary."""
        return self.features[:, self.places[name]]

    def __len__(self) -> int:
        return len(self.features)


def parts_of(model: Any) -> Parts:
    """Raises `UnsupportedTreesError`, with the reason, for a model that is no booster, `Blend` or calibrated one."""
    from surrogate.models.blend import Blend  # here: the models bring pandas with them
    from surrogate.models.calibrated import Calibrated

    if isinstance(model, Calibrated):
        return replace(parts_of(model.base), corrections=model.corrections)
    if isinstance(model, Blend):
        return replace(
            parts_of(model.trees), process=model.process, process_share=model.params["process_share"]
        )
    needed = ("columns", "_candidates", "_base_us")
    files = model.save() if all(hasattr(model, name) for name in needed) else {}
    if set(files) != FILES:
        raise UnsupportedTreesError(f"{model.name} is not a single booster")
    content, columns = files["booster.ubj"], tuple(model.columns)
    trees = Trees.from_ubj(content)
    if trees.category_column not in (None, len(columns)):
        raise UnsupportedTreesError("a column other than the candidate's code is categorical")
    return Parts(trees, columns, dict(model._candidates), model._base_us, content)
