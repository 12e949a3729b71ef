"""Whose order of the candidates answers on a GPU that was never measured: the model's, or a habit's.

A habit is the order that is best on average on the measured GPUs, or that of the nearest of them at the same problem.
Which is best is found by leaving GPUs out in turn, each with its architecture, and is decided once for a family.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from surrogate.dataset.problems import device_names, groups, joined
from surrogate.dataset.rows import Rows
from surrogate.evaluation.judge import Candidates, choose
from surrogate.models.alike import nearest
from surrogate.models.baselines import AlwaysBestSingle
from surrogate.uncertainty.fit import Split
from surrogate.uncertainty.intervals import HABIT, MODEL, NEAREST


def habit_costs(rows: Rows) -> dict[str, float]:
    """Setting and candidate, as `surrogate.models.grid.Label` is joined → the mean log slowdown over GPUs, each the
    mean over its problems; where a candidate did not run, it counts as the slowest that did."""
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
    rows: Rows, splits: Sequence[Split], elsewhere_us: np.ndarray, held_us: np.ndarray, judged: np.ndarray
) -> tuple[str, dict[str, float]]:
    """The chooser of the least mean log slowdown over the GPUs left out, and every chooser's.

    ``splits`` leave out a GPU each with its architecture (`surrogate.uncertainty.fit.gpu_splits`); (rows,)
    ``elsewhere_us`` the times of those fits, ``held_us`` times of fits that saw the GPU and not the shape, which are
    what is known of another GPU's order at a new problem; ``judged`` problems whose choice counts.
    """
    device = device_names(rows.frame)
    columns = [name for name in rows.family.row_key if name not in ("gpu", "library_version")]
    key = joined(rows.frame, columns).to_numpy()
    slowdowns: dict[str, list[float]] = {MODEL: [], HABIT: [], NEAREST: []}
    for inside, held in splits:
        outside = held[judged[held] & rows.ok[held] & np.isfinite(elsewhere_us[held])]
        outside = outside[pd.Series(rows.problem[outside]).duplicated(keep=False).to_numpy()]
        if not len(outside):
            continue
        test = rows.take(outside)
        costs = habit_costs(rows.take(inside))
        label = joined(test.frame, rows.family.setting_names) + "|" + test.candidate.astype(str)
        scores = {
            MODEL: elsewhere_us[outside],
            HABIT: label.map(costs).to_numpy(dtype=float),
            NEAREST: _on_nearest(rows, test, np.unique(device[inside]).tolist(), pd.Series(held_us, key), key[outside]),
        }
        every = np.ones(len(test), dtype=bool)
        candidates = Candidates(pd.factorize(test.problem)[0], test.time_us, every, test.order)
        for name, score in scores.items():
            # What a habit does not know comes last, as in answers.
            known = np.nan_to_num(score, nan=np.finfo(float).max)
            slowdowns[name].append(float(np.log(choose(candidates, known, every).slowdown).mean()))
    means = {name: float(np.mean(values)) if values else 0.0 for name, values in slowdowns.items()}
    return min(means, key=lambda name: means[name]), means


def _on_nearest(rows: Rows, test: Rows, gpus: Sequence[str], held_us: pd.Series, wanted: np.ndarray) -> np.ndarray:
    """(test rows,) times of the same rows on the nearest of the ``gpus`` with the setting, NaN where it has none.

    ``held_us`` of ``rows`` by their keys, ``wanted`` the keys of the tested ones, which are one GPU's.
    """
    device = device_names(rows.frame)
    here = rows.device(device_names(test.frame)[0])
    setting = joined(rows.frame, rows.family.setting_names).to_numpy()
    out = np.full(len(test), np.nan)
    for values, positions in groups(test.frame, rows.family.setting_names):
        in_setting = (setting == "|".join(values)) & np.isfinite(held_us.to_numpy())
        measured = {name: rows.device(name) for name in gpus if (in_setting & (device == name)).any()}
        if near := nearest(rows.family, values, here, measured):
            times_us = held_us[in_setting & (device == near)].groupby(level=0).median()
            out[positions] = times_us.reindex(wanted[positions]).to_numpy()
    return out
