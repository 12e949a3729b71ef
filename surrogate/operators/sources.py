"""Public and own tables of measured operators → rows of `OperatorTable`, told apart by their columns."""

from collections.abc import Callable

import pandas as pd

from surrogate.operators.deepbench import read_deepbench
from surrogate.operators.dense import read_dense
from surrogate.operators.other_ops import read_other_ops
from surrogate.operators.own import read_own
from surrogate.operators.scope_ops import read_scope_ops

Reader = Callable[[pd.DataFrame], tuple[list[pd.DataFrame], dict[str, int]]]
"""Raw frame → frames with columns of `surrogate.operators.table.COLUMNS`, and what was dropped, by reason."""

READERS: tuple[tuple[tuple[str, ...], Reader], ...] = (
    (("gpu", "cudnn", "op", "args", "time_us"), read_other_ops),
    (("gpu", "op", "variant", "dtype", "pad_h", "time_us"), read_scope_ops),
    (("gpu", "op", "B", "H", "time_us"), read_dense),
    (("device", "precision", "M", "N", "K", "time_ms"), read_deepbench),
    (("gpu", "operator", "library", "status", "time_us"), read_own),
)
"""(columns that tell the kind of file, its reader), the first that fits."""
