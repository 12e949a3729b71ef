"""Layers other than convolutions in measured sequences: as operators, predicted by a model that saw no such shape."""

import numpy as np
import pandas as pd

from surrogate.formats.operator_tables import KINDS as ALL_KINDS
from surrogate.operators.boosted import BoostedOperators
from surrogate.operators.table import COLUMNS, SIZE_NAMES, OperatorTable

_READ = ("relu", "clipped_relu", "batch_norm", "batch_norm_inference", "bias", "add", "max_pool", "gemm")
KINDS = {call: mapped for call, mapped in ALL_KINDS.items() if mapped[0] in _READ}
"""(op, variant) of a sequence → operator and variant."""
PLACE = ["network", "gpu", "batch"]
_POOL = {
    "r": "window", "s": "window_w", "pad_h": "pad", "pad_w": "pad_w", "stride_h": "stride", "stride_w": "stride_w",
}  # fmt: skip


def other_layers(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows of a table of layer sequences that `KINDS` knows: columns of an `OperatorTable`, ``network`` and ``batch``.

    A matrix product's sizes stand as n, c, h = M, N, K (GEMV: M, K); −1 is a size that a tensor does not have.
    """
    variant = frame["variant"].fillna("").astype(str)
    mapped = [KINDS.get(pair) for pair in zip(frame["op"], variant, strict=True)]
    known = np.array([one is not None for one in mapped]) & (frame["time_us"] > 0).to_numpy()
    rows = frame[known].reset_index(drop=True)
    kinds = [one for one, kept in zip(mapped, known, strict=True) if kept and one]
    rows["kind"], rows["variant"] = [one[0] for one in kinds], [one[1] for one in kinds]
    sizes = rows[["n", "c", "h", "w", *_POOL]].astype("float64").fillna(0).astype("int64")
    gemm, gemv = (rows["kind"] == "gemm").to_numpy(), (rows["variant"] == "GEMV").to_numpy()
    pool = (rows["kind"] == "max_pool").to_numpy()
    out = pd.DataFrame(0, index=rows.index, columns=list(SIZE_NAMES), dtype="int64")
    for name in ("n", "c", "h", "w"):
        out[name] = np.where(gemm, 0, np.where(sizes[name] > 0, sizes[name], 1))
    for theirs, ours in _POOL.items():
        out[ours] = np.where(pool, sizes[theirs], 0)
    out.loc[gemm, "batch"] = 1
    out.loc[gemm, "m"] = sizes.loc[gemm, "n"]
    out.loc[gemm, "n"] = np.where(gemv[gemm], 1, sizes.loc[gemm, "c"])
    out.loc[gemm, "k"] = np.where(gemv[gemm], sizes.loc[gemm, "c"], sizes.loc[gemm, "h"])
    texts = pd.DataFrame(
        {
            "gpu": rows["gpu"], "library": np.where(gemm, "cublas", "cudnn"), "kind": rows["kind"],
            "library_version": rows["library_version"], "variant": rows["variant"], "dtype": "fp32", "math": "fma",
            "time_us": rows["time_us"], "network": rows["network"], "network_batch": rows["batch"],
        }
    )  # fmt: skip
    return pd.concat([out, texts], axis=1)


def shapes(frame: pd.DataFrame) -> np.ndarray:
    """(rows,) a text naming each row's operator without its batch: n of images, m of products (GEMV has none)."""
    sizes = frame[list(SIZE_NAMES)].copy()
    image = (frame["kind"] != "gemm").to_numpy()
    sizes.loc[image, "n"] = 0
    sizes.loc[~image & (frame["variant"] != "GEMV").to_numpy(), "m"] = 0
    parts = [frame["kind"], frame["variant"], *(sizes[name].astype(str) for name in SIZE_NAMES)]
    return np.array(["/".join(row) for row in zip(*parts, strict=True)], dtype=object)


def other_sums(held: pd.DataFrame, measured: OperatorTable, seed: int) -> pd.DataFrame:
    """Sums over the ``held`` layers of `other_layers`, measured and predicted, per network, GPU and batch.

    The model trains on the rows of ``measured`` whose shapes no held layer has.
    """
    inside = np.isin(shapes(measured.frame), list(set(shapes(held))))
    model = BoostedOperators().fit(measured.take(~inside), seed=seed)
    key = [name for name in COLUMNS if name != "time_us"]
    distinct = held.drop_duplicates(key).reset_index(drop=True)
    table = OperatorTable(distinct[list(COLUMNS)])
    each = held.merge(distinct[key].assign(other_predicted_us=model.predict_us(table)), on=key, how="left")
    each = each[np.isfinite(each["other_predicted_us"])].drop(columns="batch")
    each = each.rename(columns={"network_batch": "batch", "time_us": "other_measured_us"})
    totals = each.groupby(PLACE, as_index=False)[["other_measured_us", "other_predicted_us"]].sum()
    return totals.merge(
        each.groupby(PLACE, as_index=False).size().rename(columns={"size": "others"}), on=PLACE
    )
