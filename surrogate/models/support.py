"""Which algorithm a library will run on a problem: learned from statuses, with rules where nothing like it was seen.

Support does not depend on sizes alone smoothly: it is a table. A row's *signature* holds what decides support (filter,
stride, padding against filter, dilation, groups, direction, type, math, layout); statuses are counted per signature and
(GPU, library version), then per signature alone; what was never seen falls to the documented rules
(`surrogate.features.support`).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
import pandas as pd

from surrogate.dataset.problems import joined
from surrogate.dataset.rows import Rows
from surrogate.features.problem import SIZE_COLUMNS, ConvColumns
from surrogate.features.support import supported

_TRAITS = (
    "library", "direction", "dtype", "math", "layout", "algorithm", "r", "s", "stride_h", "stride_w",
    "dilated", "grouped", "wide_pad", "large",
)  # fmt: skip


def signatures(frame: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    """Two texts per row: with (GPU, library version) and without."""
    traits = frame.assign(
        dilated=(frame["dilation_h"] > 1) | (frame["dilation_w"] > 1),
        grouped=np.select([frame["groups"] == 1, frame["groups"] == frame["c"]], ["no", "depthwise"], "yes"),
        wide_pad=(frame["pad_h"] >= frame["r"]) | (frame["pad_w"] >= frame["s"]),
        large=(frame["h"] + 2 * frame["pad_h"] > 256) | (frame["w"] + 2 * frame["pad_w"] > 256),
    )
    general = joined(traits, _TRAITS)
    return general + "|" + joined(frame, ("gpu", "library_version")), general


@dataclass(frozen=True)
class Support:
    """Share of ok rows per signature; ``supported`` says yes from one half upwards."""

    exact: Mapping[str, float]
    general: Mapping[str, float]

    @classmethod
    def fit(cls, rows: Rows) -> Self:
        """Count the statuses of the training rows; nothing is learned from rows without one."""
        frame = rows.frame
        if "status" not in frame:
            return cls({}, {})
        # A workspace limit or a failure says nothing about support.
        known = frame["status"].isin(("ok", "not_supported")).to_numpy()
        exact, general = signatures(frame[known])
        ok = (frame.loc[known, "status"] == "ok").astype(float)
        return cls(_share(ok, exact), _share(ok, general))

    def supported(self, rows: Rows) -> np.ndarray:
        """(rows,) True where the algorithm is expected to run."""
        frame = rows.frame
        exact, general = signatures(frame)
        share = exact.map(self.exact).fillna(general.map(self.general)).to_numpy(dtype=float)
        return np.where(np.isnan(share), by_rule(frame), share >= 0.5)

    def to_json(self) -> bytes:
        """Both tables."""
        return json.dumps({"exact": dict(self.exact), "general": dict(self.general)}, sort_keys=True).encode()

    @classmethod
    def from_json(cls, content: bytes) -> Self:
        """What `to_json` wrote."""
        data = json.loads(content)
        return cls(data["exact"], data["general"])


def _share(ok: pd.Series, signature: pd.Series) -> dict[str, float]:
    """Signature → share of ok rows."""
    return {str(key): float(share) for key, share in ok.groupby(signature).mean().items()}


def by_rule(frame: pd.DataFrame) -> np.ndarray:
    """(rows,) support as the documentation tells it."""
    result = np.empty(len(frame), dtype=bool)
    for (library, direction, name, gpu_name), part in frame.groupby(
        ["library", "direction", "algorithm", "gpu"], sort=False
    ):
        p = ConvColumns.of(
            [part[c] for c in SIZE_COLUMNS], **{c: part[c] for c in ("dtype", "math", "layout", "direction")}
        )
        positions = frame.index.get_indexer(part.index)
        result[positions] = supported(
            str(name), p, library=str(library), direction=str(direction), gpu_name=str(gpu_name)
        )
    return result
