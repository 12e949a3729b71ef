"""`OperatorPredictor`: times of operators other than convolutions on one GPU."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np

from surrogate import bundled
from surrogate.features.errors import InputError, nearest
from surrogate.features.gpu import Gpu, gpu
from surrogate.features.operators import OPERATORS, Operator
from surrogate.operators.prediction import OperatorTime

if TYPE_CHECKING:
    from surrogate.operators.bundle import OperatorBundle

SHIPPED = "operators"
"""The folder in `surrogate.bundled` that holds the shipped bundle."""
ROOFLINE_UPPER = 4.3
"""Upper end of the interval around a roofline time: nine of ten of PyTorch's operators over 100 µs stay below it."""
MODEL, ROOFLINE = "model", "roofline"
CACHED = 4096
EARNEST_ROWS = 100
"""Rows of an operator on a GPU from which its own measurements are preferred to a larger table of other GPUs."""


class OperatorPredictor:
    """Predicts by the fitted bundle where it knows the kind, else by the roofline.

    ``library`` limits the kernels to those of one library ("torch", "cudnn", "cublas"). By default an operator goes to
    a library under which it, or what stands in for it (`surrogate.operators.stand_ins`), was measured on this GPU, else
    to the one with the most rows.
    """

    def __init__(self, device: Gpu, bundle: "OperatorBundle | None", library: str | None = None) -> None:
        self.gpu, self.bundle = device, bundle
        self._kept: dict[Operator, OperatorTime] = {}
        known = bundle.known_libraries if bundle else ()
        if library is not None and bundle is not None and library not in known:
            raise InputError(
                f"library {library!r} is in no fitted operator; known: {', '.join(known)}{nearest(library, known)}"
            )
        self._libraries = known if library is None else (library,)
        self._on_gpu, self._overall = bundle.domain.counts() if bundle else ({}, {})

    @classmethod
    def load(cls, device: str | Gpu, bundle: str | Path | None = None, *, library: str | None = None) -> Self:
        """For a GPU by name, with the bundle in a folder, or the shipped one (rooflines alone where none ships).

        Raises `InputError` for an unknown GPU or library, and for a missing or damaged bundle.
        """
        one = gpu(device) if isinstance(device, str) else device
        return cls(one, _shipped() if bundle is None else _loaded(Path(bundle).resolve()), library)

    def predict(self, ops: Sequence[Operator]) -> list[OperatorTime]:
        """One prediction per operator (of whole-number sizes), in order; each distinct one is computed once."""
        new = [op for op in dict.fromkeys(ops) if op not in self._kept]
        if new:
            if len(self._kept) + len(new) > CACHED:
                self._kept.clear()
                new = list(dict.fromkeys(ops))
            self._kept.update(zip(new, self._predict(new), strict=True))
        return [self._kept[op] for op in ops]

    def _predict(self, ops: list[Operator]) -> list[OperatorTime]:
        found = [self._by_roofline(op) for op in ops]
        chosen = [self._chosen(op) for op in ops]
        rows = [i for i, one in enumerate(chosen) if one is not None]
        if not rows or self.bundle is None:
            return found
        from surrogate.operators.table import table_of

        stand_ins = [one for one in chosen if one is not None]
        table = table_of(self.gpu, stand_ins)
        predicted = self.bundle.predict(table)
        kernel = self.bundle.kernel_us(table, predicted["predicted_us"].to_numpy())
        columns = (
            predicted[name].to_numpy() for name in ("predicted_us", "lower_us", "upper_us", "in_domain")
        )
        for row, (_, library), own_us, call, low, high, inside in zip(
            rows, stand_ins, kernel, *columns, strict=True
        ):
            if np.isfinite(call):
                inside = bool(inside) and chosen[row][0].kind == ops[row].kind  # type: ignore[index]
                lower, upper = min(low / call * own_us, own_us), max(high / call * own_us, own_us)
                found[row] = OperatorTime(
                    ops[row],
                    self.gpu.name,
                    float(own_us),
                    float(lower),
                    float(upper),
                    float(call),
                    MODEL,
                    library,
                    inside,
                )
        return found

    def _by_roofline(self, op: Operator) -> OperatorTime:
        time_us = float(op.roofline_us(self.gpu))
        return OperatorTime(
            op, self.gpu.name, time_us, time_us, ROOFLINE_UPPER * time_us, time_us, ROOFLINE, "", False
        )

    def _chosen(self, op: Operator) -> tuple[Operator, str] | None:
        """The operator that the model knows, itself first, and the library whose kernels it is."""
        from surrogate.operators.stand_ins import candidates

        if self.bundle is None or OPERATORS.get(op.kind) is not type(op):
            return None
        known = [
            (one, library)
            for one in candidates(op)
            for library in self._libraries
            if self._overall.get((library, one.kind, one.variant))
        ]
        return max(known, key=self._evidence, default=None)

    def _evidence(self, choice: tuple[Operator, str]) -> tuple[bool, int]:
        """Measured on this GPU (in earnest), then training rows in all; the first of equals is taken."""
        one, library = choice
        label = (library, one.kind, one.variant)
        return self._on_gpu.get((self.gpu.name, *label), 0) >= EARNEST_ROWS, self._overall[label]

    def __repr__(self) -> str:
        return f"OperatorPredictor({self.gpu.name}, {self.bundle or 'rooflines'})"


def operator_time_us(op: Operator, device: str | Gpu) -> OperatorTime:
    """One operator's time on a GPU, by the shipped bundle; see `OperatorPredictor`."""
    one = gpu(device) if isinstance(device, str) else device
    return _predictor(one).predict([op])[0]


@lru_cache(maxsize=32)
def _predictor(device: Gpu) -> OperatorPredictor:
    return OperatorPredictor.load(device)


def _shipped() -> "OperatorBundle | None":
    folder = bundled.FOLDER / SHIPPED
    return _loaded(folder) if folder.is_dir() else None


@lru_cache(maxsize=8)
def _loaded(path: Path) -> "OperatorBundle":
    from surrogate.operators.bundle import load_operators

    return load_operators(path)
