"""`OperatorFamily`: operators with common formulas, made of a `FamilyDeclaration` and the operators that name it.

A family holds several operators (its column ``operator``) with the same sizes and columns. All families limited by
memory traffic have the same columns (`memory_family`).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Self

import numpy as np

from ..algorithms import missing_hardware
from ..elementwise import Number, log2, maximum, where
from ..errors import InputError, check_choice
from ..family import DECLARED, Family, Formula, ProblemTerms
from ..gpu import Gpu, gpu as gpu_by_name
from ..problem import ELEMENTS, QUANTISED, declared_settings, read_sizes, shared_sizes
from ..roofline import MACHINE_NAMES, Machine, machine, machine_features, missing_units
from .operator import MemoryBound, Operator

AMD_GENERATION = 8.0
"""The compute capability of AMD's GPUs for models. With 0, below NVIDIA's oldest, trees treated them as Pascal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyDeclaration:
    """The declaration of a family. Its operators name it, and their classes declare sizes and settings.

    ``columns`` returns the values of ``column_names`` for a problem on a machine. ``dimension_names`` are the raw sizes
    among them. ``batch``, ``strata`` (default: the operators), ``candidate_key``, ``lines``, ``grid_sizes``,
    ``tiled_kinds`` and ``call_cost_by_gpu`` are as in `Family`. ``counted`` is `Family.counted_names` (empty: all sizes
    that count).
    """

    name: str
    columns: Callable[[Any, Machine], tuple[Number, ...]]
    column_names: tuple[str, ...]
    dimension_names: tuple[str, ...]
    batch: tuple[str, ...]
    strata: tuple[str, ...] = ()
    candidate_key: tuple[str, ...] = ("operator", "variant", "algorithm")
    counted: tuple[str, ...] = ()
    lines: tuple[Mapping[str, int], ...] = ()
    grid_sizes: tuple[str, ...] = ()
    tiled_kinds: tuple[str, ...] = ()
    call_cost_by_gpu: bool = False

    @classmethod
    def of(cls, name: str, columns: Callable[[Any, Machine], tuple[Number, ...]]) -> Self:
        """Return the declaration of a family in `families.toml`. Default columns are those of a pass over memory."""
        row = {"column_names": DECLARED["memory_names"], **DECLARED[name]}
        declared: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in row.items()
        }
        return cls(name=name, columns=columns, **declared)


class OperatorFamily(Family[Operator]):
    """A family of operators with common formulas. ``kinds`` are the values of the column ``operator``."""

    setting_columns = ("itemsize", "uses_tensor_cores")

    def __init__(self, declaration: FamilyDeclaration, operators: Iterable[type[Operator]]) -> None:
        self.name = declaration.name
        self.kinds = {cls.kind: cls for cls in operators}
        if not self.kinds:
            raise TypeError(f"family {self.name}: no operator names it as its FAMILY")
        self.sizes = shared_sizes(self.kinds.values())
        first = next(iter(self.kinds.values()))
        settings = first.setting_names()
        if odd := [cls.kind for cls in self.kinds.values() if cls.setting_names() != settings]:
            raise TypeError(f"family {self.name}: {', '.join(odd)} has other settings than {', '.join(settings)}")
        choices = {setting: first.CHOICES.get(setting, ()) for setting in settings}
        self.settings = {"operator": tuple(self.kinds), **choices}
        self.setting_meanings = {name: text for name, text in declared_settings(first).items() if text}
        defaults = {field.name: str(field.default) for field in fields(first)}
        self.setting_defaults = {  # a default that depends on the sizes is empty
            setting: defaults.get(setting) or next(iter(choices), "") for setting, choices in self.settings.items()
        }
        self.strata = declaration.strata or (tuple(self.kinds) if len(self.kinds) > 1 else ())
        for name in ("batch", "candidate_key", "lines", "grid_sizes", "tiled_kinds", "call_cost_by_gpu"):
            setattr(self, name, getattr(declaration, name))
        self.problem_names = (*declaration.column_names, *DECLARED["common_names"])
        self.dimension_names = (*declaration.dimension_names, *self.setting_columns, *MACHINE_NAMES)
        self._counted = declaration.counted
        self._columns = declaration.columns

    @property
    def counted_names(self) -> tuple[str, ...]:
        """The sizes in the declaration's ``counted``; by default all sizes that count."""
        return self._counted or super().counted_names

    def read(self, kind: str, body: str, settings: Mapping[str, str]) -> Operator:
        """Return the operator ``kind`` with the sizes in ``body``, as in ``m4096n4096k7168``.

        Raises `InputError`, with the operator's sizes and an example, if the text is not readable.
        """
        cls = self.kinds[kind]
        sizes, rest = read_sizes(body, r"([a-z_]+)(\d+)", {"bs": cls.BATCH, **cls.ALSO_READ, **cls.LETTERS})
        names = cls.size_names()
        example = cls.KNOWN_ANSWER.problem if cls.KNOWN_ANSWER else f"{kind}:" + "".join(f"{name}8" for name in names)
        expected = f"{kind} has {_sizes_of(cls)}, as in {example}"
        rest = rest or next((name for name in sizes if name not in names), "")
        if rest or not sizes:
            raise InputError(f"problem {f'{kind}:{body}'!r} is not readable at {rest!r}; {expected}")
        try:
            return cls(**sizes, **settings)
        except TypeError:
            raise InputError(f"problem {f'{kind}:{body}'!r} lacks a size; {expected}") from None

    def misfits(self, sizes: Mapping[str, np.ndarray], library: np.ndarray) -> list[tuple[str, np.ndarray, str]]:
        """Return the operators' rules if all operators of the family have the same rules."""
        rules = {cls.misfits.__func__: cls.misfits for cls in self.kinds.values()}
        return next(iter(rules.values()))(sizes) if len(rules) == 1 else []

    def problem(self, sizes: Mapping[str, Number], setting: Mapping[str, str]) -> Operator:
        """Return the `Operator` of the setting's kind; sizes that it lacks are ignored. Raises `InputError` for an
        unknown kind."""
        kind = setting.get("operator") or self.setting_defaults["operator"]
        check_choice(f"family {self.name}: operator", kind, self.kinds)
        cls = self.kinds[kind]
        own_sizes = {name: sizes[name] for name in cls.size_names() if name in sizes}
        return cls(**own_sizes, **{name: setting[name] for name in self.setting_names[1:] if name in setting})

    def setting_of(self, problem: Operator) -> tuple[str, ...]:
        """Return the operator, the dtype, the math, the variant, and the family's further settings."""
        return problem.kind, *(getattr(problem, name) for name in self.setting_names[1:])

    def sizes_of(self, problem: Operator) -> tuple[Number, ...]:
        """Return the values of `size_names`; 0 for a size that the operator lacks."""
        return tuple(getattr(problem, name, 0) for name in self.size_names)

    def shortest_us(
        self, problem: Operator, setting: Mapping[str, str], gpu: Gpu, *, counts_flops: bool = True
    ) -> Number:
        """Return `Family.shortest_us`, or the minimum share of the roofline time of a transfer between devices."""
        if problem.CROSSES_LINKS:
            return problem.MIN_SHARE * problem.roofline_us(gpu)
        return super().shortest_us(problem, setting, gpu, counts_flops=counts_flops)

    def unaligned_us(self, problem: Operator, gpu: Gpu) -> Number:
        """Return the operator's time."""
        return problem.unaligned_us(gpu)

    def size_rule(self, problem: Operator, gpu: Gpu) -> tuple[Number, str]:
        """Return the operator's rule."""
        return problem.size_rule(gpu)

    def formula(self, setting: tuple[str, ...], gpu: Gpu) -> Formula:
        """Return one formula for all candidates: no public source describes how they differ."""
        kind, dtype, math, *_ = setting
        cls = self.kinds[kind]
        tensor_cores = cls.tensor_cores(dtype, math)
        m = machine(gpu, dtype, tensor_cores)._replace(peak_tflops=cls.peak_tflops(gpu, dtype, math))
        if gpu.vendor == "amd":
            m = m._replace(compute_capability=AMD_GENERATION)
        machine_columns = tuple(map(float, machine_features(m)))

        def problem(op: Operator) -> ProblemTerms:
            base_us = op.roofline_us(gpu)
            work = op.flops + 1.0  # + 1: copies have no FLOPs
            traffic = 1.0 * op.dram_bytes
            per_sm, per_l2 = maximum(op.blocks, 1) / m.sms, traffic / m.l2_bytes
            common = map(log2, (work, traffic, base_us, work / traffic, per_sm, per_l2))
            return ProblemTerms((*self._columns(op, m), *common), base_us, op)

        def candidate(terms: ProblemTerms, mechanism: str) -> tuple[tuple[Number, ...], Number]:
            return (), where(terms.roofline_us >= 0, 0, 0)  # workspace: 0, in the shape of the times

        return Formula((float(ELEMENTS[dtype].weight_bytes), float(tensor_cores), *machine_columns), problem, candidate)

    def default_math(self, dtype: str, gpu: Gpu | None = None) -> str:
        """Return the math type in the tables of these operators: ``default`` for matrix units and quantised types."""
        if gpu is None:
            return super().default_math(dtype)
        matrix_units = dtype == "fp32" and gpu.fp32_matrix_tflops
        if dtype in QUANTISED or matrix_units or self.setting_defaults["math"] == "default":
            return "default"
        return "default" if super().default_math(dtype, gpu) == "tensor_op" else "fma"

    def refusal(
        self, library: str, setting: tuple[str, ...], algorithm: str, problem: Operator, gpu_name: str
    ) -> str | None:
        """Return the unit that a product needs and the GPU lacks, or the kernel's documented rule for GPUs, or None."""
        if not gpu_name:
            return None
        multiplies = self.kinds[setting[0]].MULTIPLIES
        lacks = missing_units(gpu_by_name(gpu_name), *setting[1:3]) if multiplies else None
        return lacks or missing_hardware(library, algorithm, gpu_name)

    def is_deterministic(self, library: str, setting: tuple[str, ...], algorithm: str) -> bool | None:
        """Return what the operator states about the algorithm or its library; None if it states nothing."""
        stated = self.kinds[setting[0]].DETERMINISTIC
        return stated.get(algorithm, stated.get(library))

    def is_streaming(self, setting: tuple[str, ...]) -> bool:
        """Return True if the operator is one pass over memory."""
        return self.kinds[setting[0]].is_streaming()

    def tensor_bytes(self, problem: Operator) -> Number:
        """Return the operator's bytes of tensors."""
        return problem.tensor_bytes

    def stratum(self, problem: Operator) -> np.ndarray:
        """Return (rows,) the stratum of each problem's operator."""
        return np.full(len(np.atleast_1d(problem.flops)), problem.stratum, dtype=object)


def _sizes_of(cls: type[Operator]) -> str:
    """Return the names of an operator's sizes, with their short names."""
    short = {name: letter for letter, name in cls.LETTERS.items()}
    return ", ".join(f"{short[name]} ({name})" if name in short else name for name in cls.size_names())


def memory_columns(op: MemoryBound, m: Machine) -> tuple[Number, ...]:
    """Return the ``memory_names`` of `families.toml` for an operator's `Extents`."""
    e = op.extents
    outputs = e.elements if e.outputs is None else e.outputs
    return (
        *map(log2, (e.n, e.c, e.h, e.w, e.elements, e.window, e.window_w, e.stride)),
        e.pad,
        log2(maximum(outputs, 1) / e.elements),
        e.c % 4,
        e.elements % 4,
        2.0 ** -((-log2(e.c)) // 1) / e.c,  # padding of c to a power of two
        *map(log2, (e.tables, e.bag, e.rows)),
    )


memory_family = partial(FamilyDeclaration.of, columns=memory_columns)
"""Return the declaration of a family with these columns, by its name."""
