"""The fit of one kernel variant: class tree, instructions, DRAM trees, time per class (SEER, PACT 2021)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from surrogate.models.seer import formulas
from surrogate.models.seer.blocks import launched_blocks
from surrogate.models.seer.classify import COMPUTE, MEMORY
from surrogate.models.seer.fit import FormFit
from surrogate.models.seer.sizes import Sizes
from surrogate.models.seer.tree import Tree
from surrogate.models.seer.tuned_tree import tuned_tree
from surrogate.models.seer.variants import GEMM_P

LEAST_OUTPUTS = 32


class Measured(NamedTuple):
    """Main kernels that ran: counts *per block*, ``time_us`` of the kernel alone; arrays (rows,)."""

    sizes: Sizes
    blocks: np.ndarray
    b_max: np.ndarray
    instructions: np.ndarray
    reads: np.ndarray
    writes: np.ndarray
    bound: np.ndarray
    time_us: np.ndarray


@dataclass(frozen=True, slots=True)
class VariantFit:
    """What was fitted of one variant. ``times``: class → the time form's coefficients."""

    algorithm: str
    tile: str
    b_max: float
    blocks_per_output: float
    class_tree: Tree
    instructions: FormFit
    read_tree: Tree
    write_tree: Tree
    times: Mapping[int, FormFit]

    @classmethod
    def fit(cls, algorithm: str, tile: str, m: Measured, seed: int, evaluations: int) -> "VariantFit":
        """From measured rows of the variant (at least one)."""
        # The original clamps K in this one variant's trees when it fits, and in all of GEMM-P's when it predicts.
        clamp = algorithm == GEMM_P and tile == "128x32"
        dram = _dram_inputs(algorithm, m.sizes, m.blocks, clamp)

        def tree(x: np.ndarray, y: np.ndarray, *, classify: bool = False) -> Tree:
            return tuned_tree(x, y, classify=classify, seed=seed, evaluations=evaluations)

        outputs = m.sizes.batch * m.sizes.out_width**2 * m.sizes.outputs
        return cls(
            algorithm,
            tile,
            float(np.median(m.b_max)),
            float(np.median(m.blocks / outputs)),
            tree(_class_inputs(m.sizes, m.blocks, clamp), m.bound, classify=True),
            FormFit.of(_instruction_terms(algorithm, m.sizes), m.instructions),
            tree(dram, m.reads / _depth(algorithm, m.sizes)),
            tree(dram, m.writes),
            {int(bound): _time_fit(m, m.bound == bound, int(bound)) for bound in np.unique(m.bound)},
        )

    def launched(self, sizes: Sizes, *, original: bool = False) -> np.ndarray:
        """Blocks (rows,), by the tile's rule, else by the measured blocks per output element."""
        blocks = launched_blocks(
            self.algorithm,
            self.tile,
            batch=sizes.batch,
            width=sizes.width,
            outputs=sizes.outputs,
            out_width=sizes.out_width,
            filter_width=int(sizes.filter_width[0]) if len(sizes.filter_width) else 3,
            original=original,
        ).astype(np.float64)
        counted = np.ceil(self.blocks_per_output * sizes.batch * sizes.out_width**2 * sizes.outputs)
        return np.where(np.isnan(blocks), np.maximum(counted, 1), blocks)

    def bound(self, sizes: Sizes, blocks: np.ndarray) -> np.ndarray:
        """Class of each row's kernel, (rows,): see `surrogate.models.seer.classify`."""
        inputs = _class_inputs(sizes, blocks, self.algorithm == GEMM_P)
        return self.class_tree.predict(inputs).astype(np.int64)

    def predict_us(self, sizes: Sizes, blocks: np.ndarray) -> np.ndarray:
        """Time of the main kernel in µs, (rows,)."""
        rows = len(blocks)
        dram = _dram_inputs(self.algorithm, sizes, blocks, self.algorithm == GEMM_P)
        instructions = self.instructions.predict(_instruction_terms(self.algorithm, sizes), rows)
        reads = self.read_tree.predict(dram) * _depth(self.algorithm, sizes)
        writes = self.write_tree.predict(dram)
        b_max = np.full(rows, self.b_max)
        m = Measured(
            sizes, blocks, b_max, instructions, reads, writes, self.bound(sizes, blocks), np.zeros(rows)
        )
        time_us = np.empty(rows)
        for bound in np.unique(m.bound):
            mine = m.bound == bound
            time_us[mine] = self.times[int(bound)].predict(_time_terms(m, mine, int(bound)), int(mine.sum()))
        return time_us

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "algorithm": self.algorithm,
            "tile": self.tile,
            "b_max": self.b_max,
            "blocks_per_output": self.blocks_per_output,
            "class_tree": self.class_tree.to_json(),
            "instructions": self.instructions.to_json(),
            "read_tree": self.read_tree.to_json(),
            "write_tree": self.write_tree.to_json(),
            "times": {str(bound): fit.to_json() for bound, fit in self.times.items()},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "VariantFit":
        """What `to_json` returned."""
        return cls(
            data["algorithm"],
            data["tile"],
            data["b_max"],
            data["blocks_per_output"],
            Tree.from_json(data["class_tree"]),
            FormFit.from_json(data["instructions"]),
            Tree.from_json(data["read_tree"]),
            Tree.from_json(data["write_tree"]),
            {int(bound): FormFit.from_json(fit) for bound, fit in data["times"].items()},
        )


def _time_terms(m: Measured, rows: np.ndarray, bound: int) -> formulas.Terms:
    """The class's time form over the chosen rows."""
    b_max, instructions, reads, writes = (a[rows] for a in (m.b_max, m.instructions, m.reads, m.writes))
    w = formulas.waves(m.blocks[rows], b_max)
    if bound == COMPUTE:
        return formulas.compute_terms(w, b_max, instructions)
    if bound == MEMORY:
        return formulas.memory_terms(w, b_max, reads, writes)
    return formulas.under_utilised_terms(w, b_max, instructions, reads, writes)


def _time_fit(m: Measured, rows: np.ndarray, bound: int) -> FormFit:
    return FormFit.of(_time_terms(m, rows, bound), m.time_us[rows])


def _is_winograd(algorithm: str) -> bool:
    return algorithm.startswith("WINOGRAD")


def _depth(algorithm: str, s: Sizes) -> np.ndarray:
    """What reads per block are counted in: k²·C, for Winograd C."""
    return s.channels if _is_winograd(algorithm) else s.filter_width**2 * s.channels


def _instruction_terms(algorithm: str, s: Sizes) -> formulas.Terms:
    if _is_winograd(algorithm):
        return formulas.winograd_instruction_terms(s.channels)
    return formulas.gemm_instruction_terms(s.channels, s.filter_width)


def _columns(s: Sizes, clamp: bool) -> list[np.ndarray]:
    """C, W, K, O, k, stride."""
    outputs = np.maximum(s.outputs, LEAST_OUTPUTS) if clamp else s.outputs
    return [s.channels, s.width, outputs, s.out_width, s.filter_width, s.stride]


def _class_inputs(s: Sizes, blocks: np.ndarray, clamp: bool) -> np.ndarray:
    return np.column_stack([*_columns(s, clamp), blocks])


def _dram_inputs(algorithm: str, s: Sizes, blocks: np.ndarray, clamp: bool) -> np.ndarray:
    """GEMM family: the sizes, blocks, k²C, k²CK, O²k²C; Winograd: the sizes."""
    columns = _columns(s, clamp)
    if _is_winograd(algorithm):
        return np.column_stack(columns)
    depth = _depth(algorithm, s)
    return np.column_stack([*columns, blocks, depth, depth * columns[2], depth * s.out_width**2])
