"""`ConvColumns`: widened sizes and flags from texts."""

import numpy as np
import pandas as pd
import pytest

from surrogate.features.problem import SIZE_COLUMNS, ConvColumns
from surrogate.features.terms import flops


@pytest.mark.parametrize("narrow", [np.int8, np.int32])
def test_narrow_columns_are_widened_before_any_product(narrow: type[np.integer]) -> None:
    # 2·100·100·100·100·100·9 operations = 1.8e11: beyond int32, let alone int8.
    sizes = (100, 100, 100, 100, 100, 3, 3, 1, 1, 1, 1, 1, 1, 1)
    columns = ConvColumns.of([np.array([v, v], dtype=narrow) for v in sizes])
    assert all(getattr(columns, name).dtype == np.int64 for name in SIZE_COLUMNS)
    assert flops(columns).tolist() == [180_000_000_000] * 2


def test_columns_accept_constants_lists_and_series_of_texts() -> None:
    sizes = [np.array([v, v]) for v in (1, 8, 8, 8, 8, 3, 3, 1, 1, 1, 1, 1, 1, 1)]
    columns = ConvColumns.of(
        sizes, dtype=pd.Series(["fp16", "fp64"]), direction=["fwd", "bwd_data"], layout="NHWC", math="default"
    )
    assert columns.itemsize.tolist() == [2, 8]
    assert columns.is_bwd_data.tolist() == [False, True]
    assert columns.is_nhwc.tolist() == [True, True]
    assert columns.uses_tensor_cores.tolist() == [True, False]
