"""What is held out: folds by shape, network, GPU or row.

A fold is a label per row of the main table; rows of further training tables follow their shapes. All folds are made by
hashing what is held out with the seed, so they do not depend on the order of rows.
"""

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from surrogate.dataset.problems import codes, device_names, shape_names
from surrogate.features.errors import InputError, check_choice
from surrogate.features.families import Family


@dataclass(frozen=True, slots=True)
class Fold:
    """One round: positions of the rows to train on and to test on, and what is held out."""

    name: str
    train: np.ndarray
    test: np.ndarray


def fold_labels(names: np.ndarray, count: int, seed: int) -> np.ndarray:
    """(rows,) the fold of each row's name; see `fold_of_names`."""
    fold_of = fold_of_names(names, count, seed)
    return np.array([fold_of[name] for name in names])


def fold_of_names(names: Iterable[str], count: int, seed: int) -> dict[str, int]:
    """Fold number of each distinct name: sorted by a seeded hash, dealt round in turn (sizes differ by one at most)."""

    def rank(name: str) -> bytes:
        return hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=8).digest()

    return {name: i % count for i, name in enumerate(sorted(set(names), key=rank))}


def folds(by: str, family: Family, main: pd.DataFrame, also: pd.DataFrame, count: int, seed: int) -> list[Fold]:
    """The rounds of a split of one family's tables.

    Positions count through ``main`` first, then ``also``, which is never tested.

    ``by``: ``shape`` (no shape of the test rows is in training, whatever its batch, GPU or table), ``network`` (every
    shape of the held networks leaves training), ``gpu`` (one GPU each), ``random`` (rows; flatters, for comparison).
    Raises `InputError` for an unknown split, or one that the table cannot carry.
    """
    check_choice("split", by, SPLITS)
    if count < 2:
        raise InputError(f"{count} fold{'s' * (count != 1)}: at least 2 are needed")
    return SPLITS[by](family, main, also, count, seed)


def _both(family: Family, main: pd.DataFrame, also: pd.DataFrame) -> np.ndarray:
    """Shape names of all rows, main table first."""
    return np.concatenate([shape_names(part, family) for part in (main, also) if len(part)])


def _by_shape(family: Family, main: pd.DataFrame, also: pd.DataFrame, count: int, seed: int) -> list[Fold]:
    names = _both(family, main, also)
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
    """The networks that each row's problem occurs in (the table separates them by ``,`` or ``;``)."""
    if "networks" not in frame:
        return [set() for _ in range(len(frame))]
    texts = (text if isinstance(text, str) else "" for text in frame["networks"])
    return [set(filter(None, re.split(r"[,;]\s*", text))) for text in texts]


def _by_network(family: Family, main: pd.DataFrame, also: pd.DataFrame, count: int, seed: int) -> list[Fold]:
    """Networks that share most of their shapes (ResNet-50 v1 and v2) stay apart: each fold holds whole networks."""
    members = network_names(main)
    networks = set().union(*members)
    if len(networks) < 2:
        raise InputError("a split by network needs a `networks` column that names at least 2 networks")
    fold_of = fold_of_names(networks, min(count, len(networks)), seed)
    names = _both(family, main, also)
    rounds = []
    for f in range(min(count, len(networks))):
        held = {network for network, number in fold_of.items() if number == f}
        test = np.array([bool(row & held) for row in members])
        shapes = set(names[: len(main)][test])
        train = np.array([name not in shapes for name in names])
        rounds.append(Fold("+".join(sorted(held)), np.flatnonzero(train), np.flatnonzero(test)))
    return rounds


def _by_gpu(family: Family, main: pd.DataFrame, also: pd.DataFrame, count: int, seed: int) -> list[Fold]:
    """One fold a GPU; nothing is drawn."""
    here = device_names(main)
    everywhere = device_names(pd.concat([main, also]))
    spelt = main["gpu"].astype(str).to_numpy()
    shown = dict(zip(here[::-1], spelt[::-1], strict=True))  # as the table first spells it
    if len(shown) < 2:
        raise InputError(f"the table has one GPU ({shown[here[0]]}); a split by gpu needs at least 2")
    gpus = sorted(shown, key=lambda device: shown[device])
    return [Fold(shown[gpu], np.flatnonzero(everywhere != gpu), np.flatnonzero(here == gpu)) for gpu in gpus]


def _by_row(family: Family, main: pd.DataFrame, also: pd.DataFrame, count: int, seed: int) -> list[Fold]:
    """A further row of the same key as a held-out one is the same measurement, and leaves training with it."""
    label = np.random.default_rng(seed).permutation(len(main)) % count
    extra = np.empty(0, dtype=int)
    if len(also):
        key = [*family.row_key, *(["solver"] if "solver" in main and "solver" in also else [])]
        code = codes(pd.concat([main[key], also[key]], ignore_index=True), key)
        label_of = dict(zip(code[: len(main)].tolist(), label.tolist(), strict=True))
        extra = np.array([label_of.get(each, count) for each in code[len(main) :].tolist()], dtype=int)
    everywhere = np.concatenate([label, extra])
    return [Fold(str(f), np.flatnonzero(everywhere != f), np.flatnonzero(label == f)) for f in range(count)]


SPLITS = {"shape": _by_shape, "network": _by_network, "gpu": _by_gpu, "random": _by_row}
