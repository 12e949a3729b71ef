"""Whose order of the candidates answers on a GPU that was never measured: the model's, or their average rank.

The average rank is the order of the candidates' mean slowdowns on the measured GPUs. The better of both is found by
leaving GPUs out in turn, each with its architecture, and is decided once for a family.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from surrogate.dataset.problems import joined
from surrogate.dataset.rows import Rows
from surrogate.evaluation.judge import Candidates, choose
from surrogate.models.baselines import AlwaysBestSingle
from surrogate.uncertainty.fit import Split
from surrogate.uncertainty.intervals import AVERAGE_RANK, MODEL


def average_costs(rows: Rows) -> dict[str, float]:
    """Return setting and candidate, as `surrogate.models.grid.Label` is joined → its mean log slowdown over GPUs.

    On each GPU it is the mean over its problems; a candidate that did not run there counts as the slowest that did.
    """
    on_gpus: dict[str, list[dict[str, float]]] = {}
    for name, costs in AlwaysBestSingle().fit(rows).cost_.items():
        gpu, _, setting = name.partition("|")
        if gpu:  # without one it is over all
            on_gpus.setdefault(setting, []).append(costs)
    return {
        f"{setting}|{name}": float(f"{np.mean([costs.get(name, max(costs.values())) for costs in known]):.4g}")
        for setting, known in on_gpus.items()
        for name in set().union(*known)
    }


def best_chooser(
    rows: Rows, splits: Sequence[Split], elsewhere_us: np.ndarray, judged: np.ndarray
) -> tuple[str, dict[str, float]]:
    """Return the chooser of the smaller mean log slowdown over the GPUs left out, and that of each chooser.

    ``splits`` leave out a GPU each with its architecture (`surrogate.uncertainty.fit.gpu_splits`); ``elsewhere_us``
    (rows,) are the times of those fits; ``judged`` (rows,) marks problems whose choice counts.
    """
    slowdowns: dict[str, list[float]] = {MODEL: [], AVERAGE_RANK: []}
    for inside, held in splits:
        outside = held[judged[held] & rows.ok[held] & np.isfinite(elsewhere_us[held])]
        outside = outside[pd.Series(rows.problem[outside]).duplicated(keep=False).to_numpy()]
        if not len(outside):
            continue
        test = rows.take(outside)
        label = joined(test.frame, rows.family.setting_names) + "|" + test.candidate.astype(str)
        average = label.map(average_costs(rows.take(inside))).to_numpy(dtype=float)
        every = np.ones(len(test), dtype=bool)
        candidates = Candidates(pd.factorize(test.problem)[0], test.time_us, every, test.order)
        for name, score in ((MODEL, elsewhere_us[outside]), (AVERAGE_RANK, average)):
            # An unknown candidate comes last, as in answers.
            known = np.nan_to_num(score, nan=np.finfo(float).max)
            slowdowns[name].append(float(np.log(choose(candidates, known, every).slowdown).mean()))
    means = {name: float(np.mean(values)) if values else 0.0 for name, values in slowdowns.items()}
    return min(means, key=lambda name: means[name]), means
