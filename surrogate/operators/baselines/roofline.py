"""`roofline`: the operator's analytical time on the GPU; nothing is fitted. Lin et al. use it for elementwise kinds."""

from typing import ClassVar, Self

import numpy as np

from surrogate.features.gpu import gpu
from surrogate.operators.table import OperatorTable


class OperatorRoofline:
    """Peak and bandwidth, never reached (embedding bags: the traffic model)."""

    name: ClassVar[str] = "roofline"
    handles_new_gpus: ClassVar[bool] = True

    def fit(self, table: OperatorTable, *, seed: int = 0) -> Self:
        """Nothing to fit."""
        del table, seed
        return self

    def predict_us(self, table: OperatorTable) -> np.ndarray:
        """Times in µs, (rows,)."""
        return roofline_us(table)


def roofline_us(table: OperatorTable) -> np.ndarray:
    """Roofline time of each row in µs, (rows,)."""
    out = np.empty(len(table))
    for device, op, positions in table.groups():
        out[positions] = op.roofline_us(gpu(device))
    return out
