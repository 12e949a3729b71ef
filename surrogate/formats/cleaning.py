"""Rows of a benchmark harness, cleaned: newest versions, repeats, harness floors, spikes and noise.

Functions take a frame of one family with a dataset's columns; its texts are best pandas categories, which group fast. A
*line* is one candidate on problems that differ in the running size only: m of a matrix product, the length of a
context, tokens, elements.
"""

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from surrogate.features.algorithms import version_key
from surrogate.features.families import Family

FLOOR_QUANTILE, FLAT_QUANTILE = 0.02, 0.25
FLOOR_RATIO, FLAT_RATIO, AT_FLOOR = 4.0, 1.6, 2.0
FLOOR_ROWS = 20
"""Rows of a candidate below which its quantiles say nothing."""
SPIKE = 0.08
"""Beyond this relative distance from both neighbours, on one side, a time is a spike or a dip."""
RUNNING_SIZES = ("m", "query_length", "context_length", "tokens", "elements")
"""Sizes that change along a line; in a family without any of them it is the first size."""
NEAR = 4.0
"""Neighbours tell the noise where the larger running size is at most this multiple of the smaller."""
NOISE_FACTOR = 1.7
NOISE_ROWS = 100
"""Rows of a bucket below which its noise is not told."""
DECADES_US = (0.0, 10.0, 100.0, 1000.0)
"""Lower ends of the buckets of the noise, which tell a problem's size by its time."""


def newest(frame: pd.DataFrame, family: Family) -> tuple[pd.DataFrame, int]:
    """A row per problem and candidate: of each library the newest version that measured the problem, median of repeats.

    This is the rule by which choices are judged. A version that measured a part of the problems replaces older rows of
    just these. The second value counts the rows that are superseded.
    """
    # 1. The rank of each row's version, and the newest rank that each problem of a library has: (problems,).
    problem = [*(name for name in family.problem_key if name in frame), "library"]
    code = _codes(frame, problem)
    versions = frame["library_version"].astype("category")
    ordered = sorted(versions.cat.categories, key=version_key)
    rank = versions.cat.set_categories(ordered).cat.codes.to_numpy()
    newest_rank = np.full(code.max(initial=0) + 1, -1, dtype=rank.dtype)
    np.maximum.at(newest_rank, code, rank)
    is_newest = rank == newest_rank[code]
    frame = frame[is_newest]
    # 2. Only rows that are there several times need a median, which is slow.
    row = pd.Series(_codes(frame, [*problem, "algorithm"]))
    again = row.duplicated(keep=False).to_numpy()
    times = frame["time_us"].to_numpy(copy=True)
    times[again] = pd.Series(times[again]).groupby(row[again].to_numpy()).transform("median")
    return frame.assign(time_us=times)[~row.duplicated().to_numpy()], int((~is_newest).sum())


def without_floors(frame: pd.DataFrame, family: Family) -> tuple[pd.DataFrame, list[dict[Hashable, Any]]]:
    """The rows that are no harness floor, and a record per candidate of those that were.

    A harness that launches kernels one by one, or adds a step of its own, times every small problem alike. A candidate
    (GPU, library, algorithm, operator and element types, phase) has a floor where the 2 % quantile of its times lies
    over 4 times the smallest such quantile of the same GPU, operator and phase, and its 25 % quantile below 1.6 times
    its own 2 % quantile: slow kernels grow with the problem, a floor does not. Rows up to twice the floor, the record's
    ``limit_us``, are left out; beyond it the candidate's times approach those of others and stay.
    """
    # 1. Low and middle quantile of each candidate: a table with a row per candidate.
    names = [name for name in family.setting_names if name in ("operator", "dtype", "phase", "kv_dtype")]
    candidate = ["gpu", "library", "algorithm", *names]
    grouped = frame.groupby(candidate, sort=False, observed=True)
    low = grouped["time_us"].quantile(FLOOR_QUANTILE)
    flat = grouped["time_us"].quantile(FLAT_QUANTILE) < FLAT_RATIO * low
    enough = grouped.size() >= FLOOR_ROWS
    # 2. Flat candidates far above the fastest one of their GPU, operator and phase.
    kernel_group = [name for name in candidate if name in ("gpu", "operator", "phase")]
    least = low[enough].groupby(kernel_group, observed=True).transform("min").reindex(low.index)
    floors = low[enough & flat & (low > FLOOR_RATIO * least)]
    # 3. Their rows up to twice the floor; the limit of all others is 0.
    code = grouped.ngroup().to_numpy()
    limit = AT_FLOOR * low.where(low.index.isin(floors.index), 0.0).to_numpy()
    floored = frame["time_us"].to_numpy() <= limit[code]
    counts = np.bincount(code[floored], minlength=len(low))
    records = low.round(2).rename("floor_us").reset_index().assign(limit_us=(AT_FLOOR * low).to_numpy(), rows=counts)
    return frame[~floored], records[counts > 0].to_dict("records")


def along_lines(frame: pd.DataFrame, family: Family) -> tuple[np.ndarray, np.ndarray]:
    """(rows,) True at spikes and dips, and (rows,) the log distance from the line through both neighbours.

    A spike is over 8 % slower than both its neighbours along the running size, a dip as much faster. The distance is
    that from the straight line in log time over log size; NaN at the ends and between sizes further apart than `NEAR`.
    Odd m have lines of their own: rows that are not aligned are slower, and no spike.
    """
    running = [name for name in family.size_names if name in RUNNING_SIZES] or [family.size_names[0]]
    key = [name for name in family.row_key if name not in (*running, "library_version") and name in frame]
    sizes = frame[running].to_numpy(dtype=np.int64)
    apart = sizes[:, -1] - sizes[:, 0]  # what the cache holds already, in phases that fill it
    apart = sizes[:, 0] % 2 if running == ["m"] else np.where(sizes[:, 0] == 1, 0, apart)
    line = _codes(frame, key) * (apart.max(initial=0) + 1) + apart
    # 1. Rows in the order of lines and sizes, and those with a neighbour on each side.
    order = np.lexsort((sizes[:, -1], line))
    line = line[order]
    size = np.log(sizes[order, -1])
    time = np.log(frame["time_us"].to_numpy()[order])
    inner = np.flatnonzero((line[1:-1] == line[:-2]) & (line[1:-1] == line[2:])) + 1
    before, after = time[inner] - time[inner - 1], time[inner] - time[inner + 1]
    # 2. Both differences beyond the limit, with one sign.
    limit = np.log1p(SPIKE)
    spike = np.zeros(len(frame), dtype=bool)
    distance = np.full(len(frame), np.nan)
    spike[order[inner]] = (np.minimum(before, after) > limit) | (np.maximum(before, after) < -limit)
    # 3. The distance from the line through the neighbours.
    span = size[inner + 1] - size[inner - 1]
    near = (span > 0) & (span <= np.log(NEAR))
    share = ((size[inner] - size[inner - 1])[near]) / span[near]
    distance[order[inner[near]]] = (1 - share) * before[near] + share * after[near]
    return spike, distance


def noise_of(distance: np.ndarray) -> float:
    """The relative difference below which two times are equal, from the log distances of `along_lines`.

    It is 1.7 times their median, the standard deviation of the difference of two repeats: a normal error of deviation σ
    lies a median 0.83 σ off the line through two neighbours of the same error, and repeats differ by 1.41 σ.
    """
    distances = np.abs(distance[np.isfinite(distance)])
    return round(NOISE_FACTOR * float(np.median(distances)), 4) if len(distances) else 0.0


def noise_records(frame: pd.DataFrame, distance: np.ndarray) -> list[dict[Hashable, Any]]:
    """`noise_of` each (GPU, library, element type, decade of time) that has 100 distances."""
    is_told = np.isfinite(distance)
    decade = np.searchsorted(DECADES_US, frame["time_us"].to_numpy()[is_told], side="right") - 1
    bucket = ["gpu", "library", "dtype"]
    measured = frame.loc[is_told, bucket].assign(over_us=np.asarray(DECADES_US)[decade], distance=distance[is_told])
    grouped = measured.groupby([*bucket, "over_us"], observed=True)["distance"]
    table = grouped.agg(noise=lambda part: noise_of(part.to_numpy()), rows="size").reset_index()
    return table[table["rows"] >= NOISE_ROWS].to_dict("records")


def _codes(frame: pd.DataFrame, columns: Sequence[str]) -> np.ndarray:
    """(rows,) a number from 0, equal where all ``columns`` are."""
    return frame.groupby(list(columns), sort=False, observed=True).ngroup().to_numpy()
