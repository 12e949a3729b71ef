"""Families of the operators other than convolutions: matrix products, and what memory traffic dominates.

Each family holds several operators (its column ``operator``) that have the same sizes and physics.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from typing import Any

import numpy as np

from ..elementwise import Number, ceil_div, log2, maximum, where
from ..errors import require_known
from ..gpu import Gpu
from ..gpu import gpu as gpu_named
from ..machine import MACHINE_NAMES, Machine, machine, machine_features
from ..operators import OPERATORS, Operator
from ..operators.gemm import TILES
from ..operators.pointwise import POINTWISE_CLASSES, Pointwise
from ..operators.pool import FOLLOWS
from ..operators.rowwise import ROWWISE_CLASSES
from ..problem import ELEMENTS, QUANTISED
from ..roofline import missing_units
from .family import Family, Formula, ProblemTerms, Size

AMD_GENERATION = 8.0
"""What AMD's GPUs have as compute capability: 0, below NVIDIA's oldest, made trees take them for a Pascal."""
CHEAP_FLOPS = 5
"""Operations per element up to which an operator is a pass over memory on every GPU."""
COMMON_NAMES = (
    "log2_flops", "log2_dram_bytes", "log2_roofline_us", "log2_intensity", "log2_blocks_per_sm", "log2_bytes_per_l2",
)  # fmt: skip
GEMM_NAMES = (
    "log2_batch", "log2_m", "log2_n", "log2_k", "m_remainder_4", "n_remainder_4", "k_remainder_4", "k_remainder_8",
    *(f"{name}_{edge}" for edge in TILES for name in ("log2_tiles_per_sm", "log2_quantised_us", "tile_utilisation")),
)  # fmt: skip
MEMORY_NAMES = (
    "log2_n", "log2_c", "log2_h", "log2_w", "log2_elements", "log2_window", "log2_window_w", "log2_stride", "pad",
    "log2_outputs_per_input", "c_remainder_4", "elements_remainder_4", "c_padding", "log2_tables", "log2_bag",
    "log2_rows",
)  # fmt: skip


def gemm_columns(op: Any, m: Machine) -> tuple[Number, ...]:
    """`GEMM_NAMES` of a product on a machine: sizes, alignment, and tiles at three edges."""
    values = [log2(op.batch), log2(op.m), log2(op.n), log2(op.k), op.m % 4, op.n % 4, op.k % 4, op.k % 8]
    for edge in TILES:
        rows, columns = ceil_div(op.m, edge), ceil_div(op.n, edge)
        tiles = op.batch * rows * columns
        # One wave holds a tile on every SM; the last wave costs as much as a full one.
        wave_us = 2.0 * edge * edge * op.k * m.sms / (m.peak_tflops * 1e6)
        useful = op.m / (rows * edge) * (op.n / (columns * edge))
        values += [log2(tiles / m.sms), log2(ceil_div(tiles, m.sms) * wave_us), useful]
    return tuple(values)


def memory_columns(op: Any, m: Machine) -> tuple[Number, ...]:
    """`MEMORY_NAMES` of any other operator; a size that the operator lacks counts as 1, a padding as 0."""
    get = lambda name, default=1: getattr(op, name, default)  # noqa: E731
    elements = get("elements", None)
    if elements is None:
        elements = op.batch * op.dim
    c = get("dim", None)
    if c is None:
        c = get("c")
    return (
        log2(get("n")), log2(c), log2(get("h")), log2(get("w")), log2(elements),
        log2(get("window")), log2(get("window_w")), log2(get("stride")), get("pad", 0),
        log2(maximum(get("outputs", elements), 1) / elements), c % 4, elements % 4,
        2.0 ** -((-log2(c)) // 1) / c,  # what a power of two above c would waste
        log2(get("tables")), log2(get("bag")), log2(get("rows")),
    )  # fmt: skip


class OperatorFamily(Family):
    """Operators of one physics: ``kinds`` are the values of the column ``operator``."""

    setting_columns = ("itemsize", "uses_tensor_cores")

    def __init__(
        self,
        name: str,
        kinds: tuple[str, ...],
        columns: Callable[[Any, Machine], tuple[Number, ...]],
        column_names: tuple[str, ...],
        dimension_names: tuple[str, ...],
        batch: tuple[str, ...],
        *,
        strata: tuple[str, ...] = (),
        candidate_key: tuple[str, ...] = ("operator", "variant", "algorithm"),
        counted: tuple[str, ...] = (),
        lines: tuple[Mapping[str, int], ...] = (),
        ticks: tuple[str, ...] = (),
    ) -> None:
        self.name = name
        self.kinds = {kind: OPERATORS[kind] for kind in kinds}
        names = dict.fromkeys(size for cls in self.kinds.values() for size in cls.size_names())
        self.sizes = tuple(_size(size, tuple(self.kinds.values())) for size in names)
        first = self.kinds[kinds[0]]
        self.settings = {
            "operator": kinds,
            **{setting: first.CHOICES.get(setting, ()) for setting in first.setting_names()},
        }
        defaults = {field.name: str(field.default) for field in fields(first)}
        self.setting_defaults = {  # an operator's own default may depend on its sizes
            setting: defaults.get(setting) or next(iter(known), "") for setting, known in self.settings.items()
        }
        self.batch = batch
        self.strata = strata or (kinds if len(kinds) > 1 else ())
        self.candidate_key = candidate_key
        self._counted = counted
        self.lines = lines
        self.ticks = ticks
        self.problem_names = (*column_names, *COMMON_NAMES)
        self.dimension_names = (*dimension_names, *self.setting_columns, *MACHINE_NAMES)
        self._columns = columns

    @property
    def counted_names(self) -> tuple[str, ...]:
        """Those that the family names, else all."""
        return self._counted or super().counted_names

    def geometry(self, sizes: Mapping[str, np.ndarray], library: np.ndarray) -> list[tuple[str, np.ndarray, str]]:
        """What the operator says, where the family has one."""
        return next(iter(self.kinds.values())).misfits(sizes) if len(self.kinds) == 1 else []

    def problem(self, sizes: Mapping[str, Any], setting: Mapping[str, str]) -> Any:
        """The `Operator` of that kind; sizes that it lacks are ignored. Raises `InputError` for an unknown kind."""
        kind = setting.get("operator") or self.setting_defaults["operator"]
        require_known(f"family {self.name}: operator", kind, self.kinds)
        cls = self.kinds[kind]
        known_sizes = {name: sizes[name] for name in cls.size_names() if name in sizes}
        return cls(**known_sizes, **{name: setting[name] for name in self.setting_names[1:] if name in setting})

    def setting_of(self, problem: Any) -> tuple[str, ...]:
        """Operator, dtype, math, variant, and the family's others."""
        return problem.kind, *(getattr(problem, name) for name in self.setting_names[1:])

    def sizes_of(self, problem: Any) -> tuple[Number, ...]:
        """Values of `size_names`; 0 for a size that the operator lacks."""
        return tuple(getattr(problem, name, 0) for name in self.size_names)

    def formula(self, setting: tuple[str, ...], gpu: Gpu) -> Formula:
        """One formula for every candidate: no public source says how they differ."""
        kind, dtype, math, *_ = setting
        cls = self.kinds[kind]
        tensor_cores = cls.tensor_cores(dtype, math)
        m = machine(gpu, dtype, tensor_cores)._replace(peak_tflops=cls.peak_tflops(gpu, dtype, math))
        if gpu.vendor == "amd":
            m = m._replace(compute_capability=AMD_GENERATION)
        machine_columns = tuple(map(float, machine_features(m)))

        def problem(op: Any) -> ProblemTerms:
            base_us = op.roofline_us(gpu)
            work, traffic = op.flops + 1.0, 1.0 * op.dram_bytes
            common = (
                log2(work), log2(traffic), log2(base_us), log2(work / traffic),
                log2(maximum(op.blocks, 1) / m.sms), log2(traffic / m.l2_bytes),
            )  # fmt: skip
            return ProblemTerms(self._columns(op, m) + common, base_us, op)

        def candidate(terms: ProblemTerms, mechanism: str) -> tuple[tuple[Number, ...], Number]:
            return (), where(terms.roofline_us >= 0, 0, 0)

        return Formula((float(ELEMENTS[dtype].weight_bytes), float(tensor_cores), *machine_columns), problem, candidate)

    def default_math(self, dtype: str, gpu: Gpu) -> str:
        """As the tables of these operators name it: ``default`` where matrix units run, and for quantised types."""
        matrix_units = dtype == "fp32" and gpu.fp32_matrix_tflops
        if dtype in QUANTISED or matrix_units or self.setting_defaults["math"] == "default":
            return "default"
        return "default" if super().default_math(dtype, gpu) == "tensor_op" else "fma"

    def refusal(
        self, library: str, setting: tuple[str, ...], algorithm: str, problem: Any, gpu_name: str
    ) -> str | None:
        """What products need and the GPU lacks."""
        multiplies = gpu_name and self.kinds[setting[0]].MULTIPLIES
        return missing_units(gpu_named(gpu_name), *setting[1:3]) if multiplies else None

    def is_streaming(self, setting: tuple[str, ...]) -> bool:
        """Pointwise and bound by memory on any GPU: counted FLOPs of gelu and tanh would blur the slope."""
        cls = self.kinds[setting[0]]
        return issubclass(cls, Pointwise) and cls.FLOPS <= CHEAP_FLOPS

    def stratum(self, problem: Any) -> np.ndarray:
        """As the operator says."""
        return np.full(len(np.atleast_1d(problem.flops)), problem.stratum, dtype=object)


_SAME_AS = {**FOLLOWS, "kv_heads": "heads", "context_length": "query_length"}


def _size(name: str, classes: tuple[type[Operator], ...]) -> Size:
    """The column of a size; 0 stands where an operator of the family has no such size."""
    declared = [{field.name: field.default for field in fields(cls)} for cls in classes]
    shared = all(name in columns for columns in declared)
    least = 0 if not shared or any(name in cls.MAY_BE_ZERO for cls in classes) else 1
    default = declared[0].get(name, 0) if shared else 0
    return Size(name, least, _SAME_AS.get(name, None if default is MISSING else default))


_MATRIX = tuple(kind for kind, cls in OPERATORS.items() if "k" in cls.size_names())
_POOLS = tuple(kind for kind, cls in OPERATORS.items() if "stride" in cls.size_names())
_EMBEDDINGS = tuple(kind for kind, cls in OPERATORS.items() if "bag" in cls.size_names())
_TRANSFERS = ("memcpy", "concat", "all_reduce", "all_to_all", "all_gather", "reduce_scatter")
_IMAGE_SIZES = ("log2_n", "log2_c", "log2_h", "log2_w")


def _memory(
    name: str, kinds: tuple[str, ...], dimensions: tuple[str, ...], batch: tuple[str, ...], **lines: Any
) -> OperatorFamily:
    return OperatorFamily(name, kinds, memory_columns, MEMORY_NAMES, dimensions, batch, **lines)


GEMM = OperatorFamily(
    "gemm", _MATRIX, gemm_columns, GEMM_NAMES, ("log2_batch", "log2_m", "log2_n", "log2_k"), ("batch", "m"),
    lines=({"k": 1}, {"n": 1}), ticks=("m", "n", "k"),
)  # fmt: skip
POINTWISE = _memory("pointwise", tuple(POINTWISE_CLASSES), (*_IMAGE_SIZES, "log2_elements"), ("n",))
ROWWISE = _memory("rowwise", tuple(ROWWISE_CLASSES), _IMAGE_SIZES, ("n",))
QUANTISE = _memory("quantise", ("quantise",), _IMAGE_SIZES, ("n",), lines=({"n": 1}, {"c": 1}), ticks=("n", "c"))
POOL = _memory("pool", _POOLS, (*_IMAGE_SIZES, "log2_window", "log2_window_w", "log2_stride", "pad"), ("n",))
EMBEDDING = _memory(
    "embedding", _EMBEDDINGS, ("log2_elements", "log2_c", "log2_tables", "log2_bag", "log2_rows"), ("batch",)
)
TRANSFER = OperatorFamily(
    "transfer", _TRANSFERS, lambda op, m: (*memory_columns(op, m), log2(maximum(getattr(op, "ranks", 1), 1))),
    (*MEMORY_NAMES, "log2_ranks"), ("log2_elements", "log2_ranks"), (), lines=({"elements": 1},), ticks=("elements",),
)  # fmt: skip
