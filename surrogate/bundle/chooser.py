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
from surrogate.uncertainty.fit import Split
from surrogate.uncertainty.intervals import HABIT, MODEL, NEAREST


def habit_costs(rows: Rows) -> dict[str, float]:
    """Setting and candidate, as `surrogate.models.grid.Label` is joined → the mean log slowdown over GPUs, each the
    mean over its problems; where a candidate did not run, it counts as the slowest that did."""
    rows = rows.take(rows.ok)
    label = joined(rows.frame, rows.family.setting_names) + "|" + rows.candidate.astype(str)
    setting = joined(rows.frame, rows.family.setting_names).to_numpy()
    log_us = pd.Series(np.log(rows.time_us))
    table = pd.DataFrame({"gpu": device_names(rows.frame), "setting": setting, "label": label.to_numpy()})
    table["slowdown"] = (log_us - log_us.groupby(rows.problem).transform("min")).to_numpy()
    table["problem"] = rows.problem
    costs: dict[str, float] = {}
    for _, part in table.groupby("setting"):
        means = []
        for _, on_gpu in part.groupby("gpu"):
            wide = on_gpu.pivot_table(index="problem", columns="label", values="slowdown", aggfunc="min")
            means.append(wide.T.fillna(wide.max(axis=1)).mean(axis=1))
        by_gpu = pd.DataFrame(means)
        costs |= by_gpu.T.fillna(by_gpu.max(axis=1)).mean(axis=1).to_dict()
    return {str(name): float(f"{cost:.4g}") for name, cost in costs.items()}


def best_chooser(
    rows: Rows, splits: Sequence[Split], elsewhere_us: np.ndarray, held_us: np.ndarray, judged: np.ndarray
) -> tuple[str, dict[str, float]]:
    """The chooser of the least mean log slowdown over the GPUs left out, and every chooser's.

    ``splits`` leave out a GPU each with its architecture (`surrogate.uncertainty.fit.gpu_splits`); (rows,)
    ``elsewhere_us`` the times of those fits, ``held_us`` times of fits that saw the GPU and not the shape, which are
    what is known of another GPU's order at a new problem; ``judged`` problems whose choice counts.
    """
    device = device_names(rows.frame)
    key = joined(
        rows.frame, [name for name in rows.family.row_key if name not in ("gpu", "library_version")]
    ).to_numpy()
    slowdowns: dict[str, list[float]] = {MODEL: [], HABIT: [], NEAREST: []}
    for inside, outside in splits:
        outside = outside[judged[outside] & rows.ok[outside] & np.isfinite(elsewhere_us[outside])]
        problem = pd.factorize(rows.problem[outside])[0]
        outside = outside[np.bincount(problem, minlength=1)[problem] > 1] if len(outside) else outside
        if not len(outside):
            continue
        test = rows.take(outside)
        costs = habit_costs(rows.take(inside))
        label = joined(test.frame, rows.family.setting_names) + "|" + test.candidate.astype(str)
        scores = {
            MODEL: elsewhere_us[outside],
            HABIT: label.map(costs).to_numpy(dtype=float),
            NEAREST: _on_nearest(rows, test, np.unique(device[inside]).tolist(), key, held_us, key[outside]),
        }
        every = np.ones(len(outside), dtype=bool)
        candidates = Candidates(pd.factorize(test.problem)[0], test.time_us, every, test.order)
        for name, score in scores.items():
            # What a habit does not know comes last, as in answers.
            known = np.nan_to_num(score, nan=np.finfo(float).max)
            slowdowns[name].append(float(np.log(choose(candidates, known, every).slowdown).mean()))
    means = {name: float(np.mean(values)) if values else 0.0 for name, values in slowdowns.items()}
    return min(means, key=lambda name: means[name]), means


def _on_nearest(
    rows: Rows, test: Rows, gpus: Sequence[str], key: np.ndarray, held_us: np.ndarray, wanted: np.ndarray
) -> np.ndarray:
    """(test rows,) times of the same rows on the nearest of the ``gpus`` with the setting, NaN where it has none."""
    device = device_names(rows.frame)
    out = np.full(len(test), np.nan)
    devices = {name: rows.device(name) for name in [*gpus, *np.unique(device_names(test.frame)).tolist()]}
    setting = joined(rows.frame, rows.family.setting_names).to_numpy()
    for values, positions in groups(test.frame, rows.family.setting_names):
        here = device_names(test.frame)[positions[0]]
        in_setting = setting == "|".join(values)
        measured = {name: devices[name] for name in gpus if (in_setting & (device == name)).any()}
        near = nearest(rows.family, values, devices[here], measured)
        if near is None:
            continue
        members = np.flatnonzero(in_setting & (device == near) & np.isfinite(held_us))
        times = pd.Series(held_us[members]).groupby(key[members]).median()
        out[positions] = times.reindex(wanted[positions]).to_numpy()
    return out
