"""Which candidate a library will run on a problem: learned from statuses, with rules where nothing like it was seen.

Support does not depend on sizes smoothly: it is a table. A row's *signature* holds what decides it (the setting, the
candidate and the family's traits of the sizes); statuses are counted per signature and (GPU, library version), then per
signature alone; what was never seen falls to the documented rules (`Family.refusal`).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from surrogate.features.families import Family

if TYPE_CHECKING:
    import pandas as pd

    from surrogate.dataset.rows import Rows


def signatures(frame: "pd.DataFrame", kind: Family) -> tuple[np.ndarray, np.ndarray]:
    """(rows,) two texts: library, setting, algorithm and traits, with and without ``|GPU|library version`` behind."""
    from surrogate.dataset.problems import device_names, groups, problems_of

    general = np.full(len(frame), "", dtype=object)
    for (library, *setting, algorithm), positions in groups(frame, ("library", *kind.setting_names, "algorithm")):
        traits = kind.traits(problems_of(frame.iloc[positions], kind, tuple(setting)))
        start = "|".join((library, *setting, algorithm))
        columns = [np.broadcast_to(np.asarray(trait), len(positions)).tolist() for trait in traits]
        general[positions] = (
            ["|".join((start, *map(str, map(int, row)))) for row in zip(*columns, strict=True)] if columns else start
        )
    where = "|" + device_names(frame).astype(object) + "|" + frame["library_version"].astype(str).to_numpy(object)
    return general + where, general


@dataclass(frozen=True)
class Support:
    """Share of ok rows per signature; ``supported`` says yes from one half upwards."""

    exact: Mapping[str, float]
    general: Mapping[str, float]

    @classmethod
    def fit(cls, rows: "Rows") -> Self:
        """Count the statuses of the training rows; nothing is learned from rows without one."""
        import pandas as pd

        frame = rows.frame
        if "status" not in frame:
            return cls({}, {})
        # A workspace limit or a failure says nothing about support.
        known = frame["status"].isin(("ok", "not_supported")).to_numpy()
        exact, general = signatures(frame[known], rows.family)
        ok = pd.Series((frame.loc[known, "status"] == "ok").to_numpy(dtype=float))
        return cls(_share(ok, pd.Series(exact)), _share(ok, pd.Series(general)))

    def supported(self, rows: "Rows") -> np.ndarray:
        """(rows,) True where the algorithm is expected to run."""
        import pandas as pd

        frame = rows.frame
        exact, general = map(pd.Series, signatures(frame, rows.family))
        share = exact.map(self.exact).fillna(general.map(self.general)).to_numpy(dtype=float)
        unknown = np.isnan(share)
        supported = share >= 0.5
        if unknown.any():
            supported[unknown] = by_rule(frame[unknown], rows.family)
        return supported

    def to_json(self) -> bytes:
        """Both tables."""
        return json.dumps({"exact": dict(self.exact), "general": dict(self.general)}, sort_keys=True).encode()

    @classmethod
    def from_json(cls, content: bytes) -> Self:
        """What `to_json` wrote."""
        return cls(**json.loads(content))


def _share(ok: "pd.Series", signature: "pd.Series") -> dict[str, float]:
    """Signature → share of ok rows."""
    return {str(key): float(share) for key, share in ok.groupby(signature).mean().items()}


def by_rule(frame: "pd.DataFrame", kind: Family) -> np.ndarray:
    """(rows,) support as the documentation tells it; rules look at the traits alone, so each is asked once."""
    import pandas as pd

    from surrogate.dataset.problems import problems_of

    allowed = np.ones(len(frame), dtype=bool)
    _, general = signatures(frame, kind)
    keys = pd.Series(general + "|" + frame["gpu"].astype(str).to_numpy(object))
    for positions in keys.groupby(keys, sort=False).indices.values():
        row = frame.iloc[positions[:1]]
        library, algorithm, gpu = (str(row[name].iloc[0]) for name in ("library", "algorithm", "gpu"))
        setting = tuple(str(row[name].iloc[0]) for name in kind.setting_names)
        problem = problems_of(row, kind, setting)
        allowed[positions] = kind.refusal(library, setting, algorithm, problem, gpu) is None
    return allowed
