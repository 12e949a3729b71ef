"""Forged boosters: ``python -m tests.models.forging FIRST LAST`` hands each to `native_booster`; it must not die.

One line a booster: its number and ``refused`` or ``read``.
"""

import sys
from typing import Any

import numpy as np
import xgboost

from surrogate.features.errors import InputError
from surrogate.models.booster_file import native_booster
from surrogate.models.ubj import decode, encode

COLUMNS = 5
NUMBERS = (0, 1, -1, -2, 2, 3, 5, 63, 64, 4095, 4096, 2**16, 2**24, 2**31 - 1, -(2**31), 2**30)
TEXTS = ("0", "1", "-1", "2", "1000000", "4294967297", "nan", "", "x", "[1,2]", "1e308", "9" * 30)
NAMES = ("left_children", "right_children", "split_indices", "default_left", "split_type", "categories",
         "categories_nodes", "categories_segments", "categories_sizes")  # fmt: skip
"""Arrays that a reader trusts most, forged more often than the others."""


def small_booster() -> xgboost.Booster:
    """Four numbers and a category with a strong effect of its own; a tenth of the values missing."""
    random = np.random.default_rng(3)
    x = random.normal(size=(300, COLUMNS)).astype(np.float32)
    x[:, 4] = random.integers(0, 9, 300)
    y = x[:, 0] * np.where(x[:, 4] % 2 == 1, 2.0, -1.0) + np.abs(x[:, 1]) + 0.1 * x[:, 4]
    x[random.random(x.shape) < 0.1] = np.nan
    data = xgboost.DMatrix(x, label=y, feature_types=["q"] * 4 + ["c"], enable_categorical=True)
    return xgboost.train({"max_depth": 4, "nthread": 1, "verbosity": 0}, data, num_boost_round=6)


def rows() -> np.ndarray:
    """(rows, columns) float32 with missing values, infinities and categories that training never saw."""
    random = np.random.default_rng(5)
    x = random.normal(size=(200, COLUMNS)).astype(np.float32) * 3
    x[:, 4] = random.integers(-1, 5000, 200)
    x[:50, 4] = random.integers(0, 9, 50)
    x[random.random(x.shape) < 0.1] = np.nan
    x[random.random(x.shape) < 0.02] = np.inf
    return x


def forged(content: bytes, seed: int) -> bytes:
    """A booster's file with one to four changes: to arrays, numbers and texts, or (rarely) to bytes."""
    random = np.random.default_rng(seed)
    if random.random() < 0.1:
        changed = bytearray(content)
        for place in random.integers(0, len(content), random.integers(1, 20)):
            changed[place] = random.integers(0, 256)
        return bytes(changed)
    model = decode(content)
    for _ in range(random.choice([1, 1, 1, 2, 4])):
        inside = model["learner"]["gradient_booster"]["model"]
        tree = inside["trees"][random.integers(len(inside["trees"]))] if inside.get("trees") else {}
        kind = random.random()
        if kind < 0.65 and tree:
            _forge_array(tree, str(random.choice(NAMES if random.random() < 0.7 else list(tree))), random)
        elif kind < 0.75 and "tree_param" in tree:
            tree["tree_param"][str(random.choice(list(tree["tree_param"])))] = str(random.choice(TEXTS))
        else:
            _forge_around(model, random)
    return encode(model)


def _forge_array(tree: dict[str, Any], name: str, random: np.random.Generator) -> None:
    array = tree.get(name)
    if not isinstance(array, np.ndarray):
        tree[name] = int(random.choice(NUMBERS))
        return
    kind = random.integers(8)
    if kind <= 3 and len(array):
        array[random.integers(len(array))] = np.array(random.choice([*NUMBERS, len(array)])).astype(
            array.dtype
        )
    elif kind == 4:
        tree[name] = array[: random.integers(len(array) + 1)]
    elif kind == 5:
        tree[name] = np.concatenate([array, array, array])
    elif kind == 6:
        tree[name] = array.astype(random.choice(["uint8", "int32", "int64", "float32"]))
    elif random.random() < 0.5:
        tree[name] = random.permutation(array)
    else:
        del tree[name]


def _forge_around(model: dict[str, Any], random: np.random.Generator) -> None:
    """One of the values around the trees, or the list of trees."""
    learner = model["learner"]
    inside = learner["gradient_booster"]["model"]
    trees = inside["trees"]
    changes = [
        lambda: inside.update(trees=trees[:-1]),
        lambda: inside.update(trees=trees + trees),
        lambda: inside.update(tree_info=[int(random.choice(NUMBERS))] * len(trees)),
        lambda: inside.update(tree_info=[]),
        lambda: inside.update(iteration_indptr=[0, int(random.choice(NUMBERS))]),
        lambda: inside.update(cats={"enc": [1, 2], "feature_segments": [5], "sorted_idx": [7]}),
        lambda: inside["gbtree_model_param"].update(num_trees=str(random.choice(TEXTS))),
        lambda: inside["gbtree_model_param"].update(num_parallel_tree=str(random.choice(TEXTS))),
        lambda: learner["learner_model_param"].update(
            {str(random.choice(list(learner["learner_model_param"]))): str(random.choice(TEXTS))}
        ),
        lambda: learner["objective"].update(name=str(random.choice(["rank:ndcg", "survival:aft", "", "x" * 900]))),
        lambda: learner["gradient_booster"].update(name=str(random.choice(["dart", "gblinear", ""]))),
        lambda: learner.update(attributes={"a": "x" * 1000, "best_iteration": "-7"}),
        lambda: learner.update(feature_types=["c"] * 3, feature_names=["a"] * 900),
        lambda: model.update(version=[int(random.choice(NUMBERS))] * 3),
    ]  # fmt: skip
    changes[random.integers(len(changes))]()


def main(first: int, last: int) -> None:
    """Hand the boosters of these numbers to XGBoost by way of the check."""
    content, x = bytes(small_booster().save_raw("ubj")), rows()
    for seed in range(first, last):
        try:
            booster = native_booster(forged(content, seed), COLUMNS)
            verdict = "read" if np.isfinite(booster.inplace_predict(x)).all() else "odd"
        except InputError as error:
            verdict = "refused" if "\n" not in str(error) else "odd"
        sys.stdout.write(f"{seed} {verdict}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    with np.errstate(all="ignore"):
        main(int(sys.argv[1]), int(sys.argv[2]))
