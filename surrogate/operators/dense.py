"""``dense_ops.parquet``: PyTorch's operators on seven GPUs (NeuSight).

``bmm`` and ``linear``: out (M × K) = (M × N)·(N × K), as the launched grids tell; the reduction is over N. The others
work on B × H. A trailing ``u`` means: with a number in the place of the second tensor. Times are of isolated calls and
hold the framework's launch overhead, 15 to 100 µs.
"""

import pandas as pd

from surrogate.features.errors import InputError
from surrogate.features.gpu import gpu

_MATRIX = {"bmm": "bmm", "linear": "linear"}
_ROWS = {
    "softmax": "softmax", "ln": "layer_norm", "relu": "relu", "gelu": "gelu", "tanh": "tanh",
    "add": "add", "mul": "mul", "div": "div", "pow": "pow",
    "addu": "add_scalar", "mulu": "mul_scalar", "divu": "div_scalar", "powu": "pow_scalar",
}  # fmt: skip
LIBRARY = "torch"


def read_dense(frame: pd.DataFrame) -> tuple[list[pd.DataFrame], dict[str, int]]:
    """Rows of the file as ours, and counts of what was dropped (unknown operators)."""
    dropped: dict[str, int] = {}
    parts = []
    for op, part in frame.groupby(frame["op"].astype(str)):
        if op not in _MATRIX and op not in _ROWS:
            dropped[f"operator {op} unknown"] = len(part)
            continue
        made = part[["gpu", "time_us"]].assign(library=LIBRARY, math=_math(part["gpu"]))
        if op in _MATRIX:
            sizes = {"batch": part["B"], "m": part["M"], "n": part["K"], "k": part["N"]}
            parts.append(made.assign(kind=_MATRIX[op], **sizes))
        else:
            parts.append(made.assign(kind=_ROWS[op], n=part["B"], c=part["H"], h=1, w=1))
    return parts, dropped


def _math(names: pd.Series) -> pd.Series:
    """PyTorch keeps TF32 off; AMD's fp32 matrix cores need no leave, and MI100's times beat its vector peak."""
    amd = {name: _is_amd(name) for name in names.unique()}
    return names.map(lambda name: "default" if amd[name] else "fma")


def _is_amd(name: str) -> bool:
    try:
        return gpu(name).vendor == "amd"
    except InputError:
        return False
