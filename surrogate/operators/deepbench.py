"""``deepbench_gemm.parquet``: Baidu's DeepBench, single products in several precisions.

Layout: C (M × N) = A·B over K; the transposes ``ta tb`` are the variant, NN the plain one. Devices that are
no GPU drop out.
"""

import pandas as pd

_PRECISIONS = {
    "Float": ("fp32", "fma"),
    "16 bit inputs, 16 bit multiplication, 32 bit addition": ("fp16", "default"),
    "16 bit inputs, 32 bit multiplication, 32 bit addition": ("fp16", "fma"),
    "GEMM, Conv: Int8 multiplication, 32 bit accumulation": ("int8", "default"),
}
LIBRARY = "cublas"


def read_deepbench(frame: pd.DataFrame) -> tuple[list[pd.DataFrame], dict[str, int]]:
    """Rows of the file as ours, and counts of what was dropped (unknown precisions)."""
    known = frame["precision"].isin(_PRECISIONS)
    dropped = {
        f"precision {name!r} unknown": int(count)
        for name, count in frame.loc[~known, "precision"].value_counts().items()
    }
    part = frame[known]
    if part.empty:
        return [], dropped
    made = pd.DataFrame(
        {
            "gpu": part["device"],
            "library": LIBRARY,
            "kind": "gemm",
            "variant": (part["ta"].astype(str) + part["tb"].astype(str)).replace("NN", ""),
            "dtype": part["precision"].map({name: dtype for name, (dtype, _) in _PRECISIONS.items()}),
            "math": part["precision"].map({name: math for name, (_, math) in _PRECISIONS.items()}),
            "batch": 1,
            "m": part["M"],
            "n": part["N"],
            "k": part["K"],
            "time_us": part["time_ms"] * 1e3,
        }
    )
    return [made], dropped
