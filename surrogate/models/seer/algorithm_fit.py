"""One counted algorithm (SEER's 0, 1, 2, 6, 7) on one device: which variant runs, and each variant's fit."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from surrogate.models.seer import formulas
from surrogate.models.seer.fit import FormFit
from surrogate.models.seer.sizes import Sizes
from surrogate.models.seer.variant_fit import Measured, VariantFit
from surrogate.models.seer.variants import Chooser

ALGORITHMS = ("IMPLICIT_GEMM", "IMPLICIT_PRECOMP_GEMM", "GEMM", "WINOGRAD", "WINOGRAD_NONFUSED")
GEMM, NONFUSED = "GEMM", "WINOGRAD_NONFUSED"


@dataclass(frozen=True, slots=True)
class AlgorithmFit:
    """``variants`` and ``extras`` (pre and post kernels) by variant key; GEMM has one im2col fit for all tiles."""

    algorithm: str
    chooser: Chooser
    variants: Mapping[str, VariantFit]
    extras: Mapping[str, FormFit]

    @classmethod
    def fit(
        cls, algorithm: str, m: Measured, tiles: np.ndarray, extra_us: np.ndarray, seed: int, evaluations: int
    ) -> "AlgorithmFit":
        """From measured rows: ``tiles`` (rows,) names, ``extra_us`` (rows,) time of the other kernels, 0 where none."""
        chooser = Chooser.fit(algorithm, m.sizes, tiles, seed, evaluations)
        keys = np.array(
            [_key(algorithm, t, int(k)) for t, k in zip(tiles, m.sizes.filter_width, strict=True)]
        )
        variants = {}
        for key in np.unique(keys):
            mine = np.flatnonzero(keys == key)
            part = Measured(m.sizes.take(mine), *(array[mine] for array in m[1:]))
            variants[str(key)] = VariantFit.fit(algorithm, str(tiles[mine[0]]), part, seed, evaluations)
        extras = {}
        for key in ([""] if algorithm == GEMM else np.unique(keys)) if algorithm in (GEMM, NONFUSED) else []:
            mine = (extra_us > 0) & ((keys == key) | (key == ""))
            if mine.any():
                extras[str(key)] = FormFit.of(_extra_terms(algorithm, m.sizes.take(mine)), extra_us[mine])
        return cls(algorithm, chooser, variants, extras)

    def predict(self, sizes: Sizes, *, original_blocks: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Times in µs and classes, (rows,) each; NaN and −1 where training held no such variant."""
        time_us = np.full(len(sizes.batch), np.nan)
        bound = np.full(len(sizes.batch), -1)
        keys = self._keys(sizes)
        for key in np.unique(keys[keys != ""]):
            mine = np.flatnonzero(keys == key)
            part, variant = sizes.take(mine), self.variants[str(key)]
            blocks = variant.launched(part, original=original_blocks)
            time_us[mine] = variant.predict_us(part, blocks) + self._extra_us(str(key), part)
            bound[mine] = variant.bound(part, blocks)
        return time_us, bound

    def _extra_us(self, key: str, sizes: Sizes) -> np.ndarray:
        """Time of the pre and post kernels (rows,), 0 where none were measured."""
        fit = self.extras.get("" if self.algorithm == GEMM else key)
        rows = len(sizes.batch)
        return fit.predict(_extra_terms(self.algorithm, sizes), rows) if fit else np.zeros(rows)

    def _keys(self, sizes: Sizes) -> np.ndarray:
        """(rows,) the variant that runs; where it was never measured, the nearest tile that was (at that width)."""
        chosen, tiles = self.chooser.choose(sizes), self.chooser.tiles
        keys = np.full(len(chosen), "", dtype=object)
        for position in np.unique(chosen):
            for width in np.unique(sizes.filter_width):
                by_distance = sorted(range(len(tiles)), key=lambda other: (abs(other - int(position)), other))
                found = (_key(self.algorithm, tiles[other], int(width)) for other in by_distance)
                key = next((one for one in found if one in self.variants), "")
                keys[(chosen == position) & (sizes.filter_width == width)] = key
        return keys

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "algorithm": self.algorithm,
            "chooser": self.chooser.to_json(),
            "variants": {key: fit.to_json() for key, fit in self.variants.items()},
            "extras": {key: fit.to_json() for key, fit in self.extras.items()},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "AlgorithmFit":
        """What `to_json` returned."""
        return cls(
            data["algorithm"],
            Chooser.from_json(data["chooser"]),
            {key: VariantFit.from_json(fit) for key, fit in data["variants"].items()},
            {key: FormFit.from_json(fit) for key, fit in data["extras"].items()},
        )


def _key(algorithm: str, tile: str, filter_width: int) -> str:
    """Non-fused Winograd's variants are tile × filter width, the others' are tiles."""
    return f"{tile}/k{filter_width}" if algorithm == NONFUSED else str(tile)


def _extra_terms(algorithm: str, s: Sizes) -> formulas.Terms:
    if algorithm == NONFUSED:
        return formulas.transform_terms(s.batch, s.channels, s.outputs, s.width, s.out_width, s.filter_width)
    return formulas.im2col_terms(s.batch, s.channels, s.outputs, s.out_width, s.filter_width)
