"""Problems, tables of them and quickly fitted bundles that the tests of serving share."""

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd
from hypothesis import strategies as st

from surrogate.bundle.bundle import Bundle
from surrogate.dataset.rows import rows_of
from surrogate.features.conv import Conv
from surrogate.features.problem import SIZE_COLUMNS
from surrogate.models import Model, Support
from surrogate.uncertainty.domain import Domain

CONV = Conv(n=8, c=16, h=14, k=16, r=3, pad_h=1)
STRIDED = replace(CONV, stride_h=2, stride_w=2)
CONVS = st.builds(
    Conv,
    n=st.sampled_from([1, 5, 32]),
    c=st.integers(1, 70),
    h=st.integers(7, 300),
    k=st.integers(1, 70),
    r=st.sampled_from([1, 2, 3, 5]),
    pad_h=st.integers(0, 3),
    stride_h=st.integers(1, 2),
    dtype=st.sampled_from(["fp32", "fp16"]),
    math=st.sampled_from(["fma", "tensor_op"]),
    layout=st.sampled_from(["NCHW", "NHWC"]),
)


def frame_of(
    convs: Sequence[Conv], algorithms: Sequence[str], gpu: str = "v100", version: str = "7.6.3"
) -> pd.DataFrame:
    """Every algorithm of every problem, without times."""
    rows = [
        {
            "gpu": gpu,
            "library": "cudnn",
            "library_version": version,
            "direction": conv.direction,
            "dtype": conv.dtype,
            "math": conv.math,
            "layout": conv.layout,
            **dict(zip(SIZE_COLUMNS, conv.sizes, strict=True)),
            "algorithm": name,
        }
        for conv in convs
        for name in algorithms
    ]
    return pd.DataFrame(rows)


def fitted(base: Bundle, frame: pd.DataFrame, model: Model) -> Bundle:
    """A bundle with ``base``'s widths, fitted without held-out folds."""
    rows = rows_of(frame)
    return replace(base, model=model.fit(rows), support=Support.fit(rows), domain=Domain.of(frame))
