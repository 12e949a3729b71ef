"""Which variant of an algorithm's main kernel runs: its name; SEER's rule for GEMM-P, trees for the rest."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from surrogate.features.elementwise import Number, where
from surrogate.features.kernels import identify
from surrogate.models.seer.blocks import TITAN_XP_B_MAX, tile_sizes
from surrogate.models.seer.sizes import Sizes
from surrogate.models.seer.tree import Tree
from surrogate.models.seer.tuned_tree import tuned_tree

GEMM_P = "IMPLICIT_PRECOMP_GEMM"
GEMM_P_TILES = tuple(TITAN_XP_B_MAX[GEMM_P])
_WINOGRAD_TILE = re.compile(r"tile(\d)(\d)(\d)")


def variant_name(algorithm: str, kernel_name: str, tile: Any = None) -> str:
    """The tile of a main kernel (``128x64``, ``1x4x8``), from the table's own ``tile`` or the kernel's name.

    A kernel whose name tells no tile is its own variant.
    """
    if isinstance(tile, str) and tile:
        return tile
    images = _WINOGRAD_TILE.search(kernel_name) if algorithm == "WINOGRAD" else None
    if images:
        return "x".join(images.groups())
    found = identify(kernel_name)
    return f"{found.tile_m}x{found.tile_n}" if found and found.tile_m else kernel_name


def gemm_p_tile(outputs: Number) -> Number:
    """Position in `GEMM_P_TILES` of GEMM-P's tile by K (SEER, PACT 2021, measured on cuDNN 7).

    128×32 if K ≤ 32 or 64 < K ≤ 96; 128×64 if 32 < K ≤ 64, 128 < K ≤ 192 or 256 < K ≤ 320; else 128×128.
    """
    k = outputs
    narrow = (k <= 32) | ((k > 64) & (k <= 96))
    middle = ((k > 32) & (k <= 64)) | ((k > 128) & (k <= 192)) | ((k > 256) & (k <= 320))
    return where(narrow, 0, where(middle, 1, 2))


@dataclass(frozen=True, slots=True)
class Chooser:
    """Picks a tile per problem: by a classification tree on C, W, K, O, k and stride, or (no tree) by `gemm_p_tile`."""

    tiles: tuple[str, ...]
    tree: Tree | None

    @classmethod
    def fit(cls, algorithm: str, sizes: Sizes, tiles: np.ndarray, seed: int, evaluations: int) -> "Chooser":
        """From measured rows. GEMM-P's rule holds where no kernel was seen but the three it knows."""
        names = tuple(sorted(set(tiles), key=lambda name: (tile_sizes(name), name)))
        if algorithm == GEMM_P and set(names) <= set(GEMM_P_TILES):
            return cls(GEMM_P_TILES, None)
        code = np.array([names.index(name) for name in tiles])
        return cls(names, tuned_tree(_inputs(sizes), code, classify=True, seed=seed, evaluations=evaluations))

    def choose(self, sizes: Sizes) -> np.ndarray:
        """(rows,) positions in ``tiles``."""
        if self.tree is None:
            return np.asarray(gemm_p_tile(sizes.outputs))
        return self.tree.predict(_inputs(sizes)).astype(np.int64)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"tiles": list(self.tiles), "tree": self.tree and self.tree.to_json()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Chooser":
        """What `to_json` returned."""
        return cls(tuple(data["tiles"]), Tree.from_json(data["tree"]) if data["tree"] else None)


def _inputs(s: Sizes) -> np.ndarray:
    return np.column_stack([s.channels, s.width, s.outputs, s.out_width, s.filter_width, s.stride])
