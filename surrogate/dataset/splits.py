"""Folds of held-out rows, by shape, network, GPU or row.

A fold is a label per row of the main table. Rows of further training tables get the fold of their shape. Folds by shape
and by network are computed by a hash of the name and the seed, so they do not depend on the order of rows.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from surrogate.dataset.problems import codes, device_names, shape_names
from surrogate.features.errors import InputError, check_choice
from surrogate.features.families import Family


@dataclass(frozen=True, slots=True)
class Fold:
    """One fold: its name, and the positions of the rows to train on and of the held-out rows to test on."""

    name: str
    train: np.ndarray
    test: np.ndarray


def fold_labels(names: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Return (rows,) the fold of each row's name; see `fold_of_names`."""
    fold_of = fold_of_names(names, count, seed)
    return np.array([fold_of[name] for name in names])


def label_folds(label: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the positions of the other rows and of the fold's rows for each fold of ``label`` (rows,).

    If all rows have one label, nothing is yielded, because no rows would be left to train on.
    """
    for fold in np.unique(label):
        is_held_out = label == fold
        if not is_held_out.all():
            yield np.flatnonzero(~is_held_out), np.flatnonzero(is_held_out)


def fold_of_names(names: Iterable[str], count: int, seed: int) -> dict[str, int]:
    """Return the fold number of each distinct name: names sorted by a seeded hash take the folds in turn.

    The numbers of names per fold differ by one at most.
    """

    def rank(name: str) -> bytes:
        return hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=8).digest()

    return {name: i % count for i, name in enumerate(sorted(set(names), key=rank))}


def folds(by: str, family: Family, main: pd.DataFrame, also: pd.DataFrame, count: int, seed: int) -> list[Fold]:
    """Return the folds of a split of one family's tables.

    Positions count the rows of ``main`` first, then of ``also``, which is never tested. ``by`` is one of:

    - ``shape``: no shape of the test rows is in training, at any batch, on any GPU, in any table,
    - ``network``: every shape of the held-out networks is left out of training,
    - ``gpu``: one GPU per fold,
    - ``random``: random rows; too optimistic, for comparison only.

    Raises `InputError` for an unknown split, and if the table has too few shapes, networks or GPUs.
    """
    check_choice("split", by, SPLITS)
    if count < 2:
        raise InputError(f"{count} fold{'s' * (count != 1)}: at least 2 are needed")
    return SPLITS[by](family, main, also, count, seed)


def _all_shapes(family: Family, main: pd.DataFrame, also: pd.DataFrame) -> np.ndarray:
    """Return the shape names of all rows, main table first."""
    return np.concatenate([shape_names(part, family) for part in (main, also) if len(part)])


def _by_shape(family: Family, main: pd.DataFrame, also: pd.DataFrame, count: int, seed: int) -> list[Fold]:
    names = _all_shapes(family, main, also)
    main_names = names[: len(main)]
    distinct = len(set(main_names))
    if distinct < 2:
        raise InputError(f"the table has {distinct} distinct shape; a split by shape needs at least 2")
    count = min(count, distinct)
    fold_of = fold_of_names(main_names, count, seed)
    label = np.array([fold_of.get(name, -1) for name in names])
    tested = label[: len(main)]
    return [Fold(str(f), np.flatnonzero(label != f), np.flatnonzero(tested == f)) for f in range(count)]


def network_names(frame: pd.DataFrame) -> list[set[str]]:
    """Return the networks of each row's problem. The table separates them by ``,`` or ``;``."""
    if "networks" not in frame:
        return [set() for _ in range(len(frame))]
    texts = (text if isinstance(text, str) else "" for text in frame["networks"])
    return [set(filter(None, re.split(r"[,;]\s*", text))) for text in texts]


def _by_network(family: Family, main: pd.DataFrame, also: pd.DataFrame, count: int, seed: int) -> list[Fold]:
    """Return folds of complete networks. All shapes of the held-out networks are left out of training."""
    members = network_names(main)
    networks = set().union(*members)
    if len(networks) < 2:
        raise InputError("a split by network needs a column `networks` with at least 2 networks")
    fold_of = fold_of_names(networks, min(count, len(networks)), seed)
    names = _all_shapes(family, main, also)
    result = []
    for f in range(min(count, len(networks))):
        holdout_networks = {network for network, number in fold_of.items() if number == f}
        test = np.array([bool(row & holdout_networks) for row in members])
        shapes = set(names[: len(main)][test])
        train = np.array([name not in shapes for name in names])
        result.append(Fold("+".join(sorted(holdout_networks)), np.flatnonzero(train), np.flatnonzero(test)))
    return result


def _by_gpu(family: Family, main: pd.DataFrame, also: pd.DataFrame, count: int, seed: int) -> list[Fold]:
    """Return one fold per GPU."""
    main_gpus = device_names(main)
    all_gpus = device_names(pd.concat([main, also]))
    spelt = main["gpu"].astype(str).to_numpy()
    label = dict(zip(main_gpus[::-1], spelt[::-1], strict=True))  # the first spelling in the table
    if len(label) < 2:
        raise InputError(f"the table has one GPU ({label[main_gpus[0]]}); a split by gpu needs at least 2")
    gpus = sorted(label, key=lambda device: label[device])
    return [Fold(label[gpu], np.flatnonzero(all_gpus != gpu), np.flatnonzero(main_gpus == gpu)) for gpu in gpus]


def _by_row(family: Family, main: pd.DataFrame, also: pd.DataFrame, count: int, seed: int) -> list[Fold]:
    """Return folds of random rows. A row of ``also`` with the key of a held-out row is left out of training, too."""
    label = np.random.default_rng(seed).permutation(len(main)) % count
    extra = np.empty(0, dtype=int)
    if len(also):
        key = [*family.row_key, *(["solver"] if "solver" in main and "solver" in also else [])]
        code = codes(pd.concat([main[key], also[key]], ignore_index=True), key)
        label_of = dict(zip(code[: len(main)].tolist(), label.tolist(), strict=True))
        extra = np.array([label_of.get(each, count) for each in code[len(main) :].tolist()], dtype=int)
    all_labels = np.concatenate([label, extra])
    return [Fold(str(f), np.flatnonzero(all_labels != f), np.flatnonzero(label == f)) for f in range(count)]


SPLITS = {"shape": _by_shape, "network": _by_network, "gpu": _by_gpu, "random": _by_row}
