"""`gradient-ratio`: a backward pass takes a ratio times its forward pass, the ratio from a regression tree.

Source: SEER (PACT 2021) and its repository, which treats the gradients of convolutions so.
"""

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import pandas as pd

from surrogate.models.seer.trees import Tree
from surrogate.models.seer.trees import tuned_tree
from surrogate.operators.baselines.polynomial import SeerPolynomials
from surrogate.operators.table import SIZE_NAMES, OperatorTable

SUFFIX = "_backward"
KEY = ("gpu", "library", "kind", "variant")


@dataclass(frozen=True, slots=True)
class RatioTree:
    """A tree of backward / forward time on any columns ``x`` (rows, columns), those of convolutions included."""

    tree: Tree

    @classmethod
    def fit(
        cls,
        x: np.ndarray,
        forward_us: np.ndarray,
        backward_us: np.ndarray,
        *,
        seed: int = 0,
        evaluations: int = 10,
    ) -> Self:
        """At most 64 splits, the minimum leaf size searched by cross-validation over ``evaluations`` values."""
        return cls(
            tuned_tree(x, backward_us / forward_us, classify=False, seed=seed, evaluations=evaluations)
        )

    def predict_us(self, x: np.ndarray, forward_us: np.ndarray) -> np.ndarray:
        """Backward times in µs, (rows,)."""
        return self.tree.predict(x) * forward_us


class GradientRatio:
    """A tree per GPU, library, backward kind and variant; forward times come from `SeerPolynomials`."""

    name: ClassVar[str] = "gradient-ratio"
    handles_new_gpus: ClassVar[bool] = False

    def __init__(self) -> None:
        self._trees: dict[str, RatioTree] = {}
        self._forward = SeerPolynomials()

    def fit(self, table: OperatorTable, *, seed: int = 0) -> Self:
        """Trees where training holds both passes of at least two problems."""
        fitted = type(self)()
        fitted._forward = SeerPolynomials().fit(table)
        pairs = paired(table)
        for key, part in pairs.groupby(list(KEY)):
            if len(part) >= 2:
                times = part["forward_us"].to_numpy(), part["time_us"].to_numpy()
                fitted._trees["|".join(map(str, key))] = RatioTree.fit(_design(part), *times, seed=seed)  # type: ignore[arg-type]
        return fitted

    def predict_us(self, table: OperatorTable) -> np.ndarray:
        """Times of backward kinds in µs, (rows,); NaN for the others, and where no tree was grown."""
        out = np.full(len(table), np.nan)
        rows = np.flatnonzero(table.frame["kind"].str.endswith(SUFFIX).to_numpy())
        if not len(rows):
            return out
        part = table.take(rows)
        forward = OperatorTable(part.frame.assign(kind=forward_kinds(part.frame["kind"])))
        forward_us = self._forward.predict_us(forward)
        for key, index in part.frame.groupby(list(KEY)).indices.items():
            tree = self._trees.get("|".join(map(str, key)))  # type: ignore[arg-type]
            if tree is not None:
                out[rows[index]] = tree.predict_us(_design(part.frame.iloc[index]), forward_us[index])
        return out


def forward_kinds(kinds: pd.Series) -> pd.Series:
    """The forward kind of each backward kind; bias_backward's is bias, though the two have little in common."""
    return kinds.str.removesuffix(SUFFIX)


def paired(table: OperatorTable) -> pd.DataFrame:
    """Rows of backward kinds whose forward pass was measured for the same problem, with its ``forward_us``."""
    frame = table.frame
    backward = frame[frame["kind"].str.endswith(SUFFIX)]
    forward = frame.rename(columns={"time_us": "forward_us"})
    keys = ["gpu", "library", "variant", "dtype", "math", *SIZE_NAMES]
    named = backward.assign(forward_kind=forward_kinds(backward["kind"]))
    return named.merge(
        forward[[*keys, "kind", "forward_us"]].rename(columns={"kind": "forward_kind"}),
        on=[*keys, "forward_kind"],
    )


def _design(frame: pd.DataFrame) -> np.ndarray:
    """(rows, columns): sizes, elements, and the dtype's width (fp64 8, fp32 4, fp16 2)."""
    sizes = frame[["n", "c", "h", "w", "window", "window_w", "stride"]].to_numpy(dtype=np.float64)
    width = frame["dtype"].str.extract(r"(\d+)", expand=False).astype(float).to_numpy() / 8
    return np.column_stack([sizes, sizes[:, :4].prod(axis=1), width])
