"""``cudnn_other_ops_p100_v100.parquet``: cuDNN calls named by the convolution they belong to (c3sr/scope).

The sizes are a convolution's; the operator's tensor is that convolution's *output*, n × k × p × q (times rank with its
elements at 0.99, with the input's at 0.6). Pooling has the convolution's filter, padding and stride over that tensor.
"""

import pandas as pd

from surrogate.features.problem import DTYPES
from surrogate.features.shape import output_size

_ACTIVATIONS = ("RELU", "CLIPPED_RELU", "ELU", "SIGMOID", "TANH")
_POOLS = {
    "POOLING_MAX": ("max_pool", ""),
    "POOLING_MAX_DETERMINISTIC": ("max_pool", "DETERMINISTIC"),
    "POOLING_AVERAGE_COUNT_INCLUDE_PADDING": ("avg_pool", ""),
    "POOLING_AVERAGE_COUNT_EXCLUDE_PADDING": ("avg_pool", "EXCLUDE_PADDING"),
}
_NORMS = {
    "PER_ACTIVATION": "PER_ACTIVATION",
    "SPATIAL": "",
    "SPATIAL_PERSISTENT": "SPATIAL_PERSISTENT",
}
_SOFTMAX = {"ACCURATE": "", "FAST": "FAST", "LOG": "LOG"}
KINDS: dict[tuple[str, str], tuple[str, str]] = {
    **{("CUDNN_ACTIVATION_FWD", f"ACTIVATION_{a}"): (a.lower(), "") for a in _ACTIVATIONS},
    **{("CUDNN_ACTIVATION_BWD", f"ACTIVATION_{a}"): (f"{a.lower()}_backward", "") for a in _ACTIVATIONS},
    **{("CUDNN_POOLING_FWD", raw): (kind, mode) for raw, (kind, mode) in _POOLS.items()},
    **{("CUDNN_POOLING_BWD", raw): (f"{kind}_backward", mode) for raw, (kind, mode) in _POOLS.items()},
    **{("CUDNN_BATCHNORM_FWD", f"BATCHNORM_{raw}, true"): ("batch_norm", m) for raw, m in _NORMS.items()},
    **{("CUDNN_BATCHNORM_FWD", f"BATCHNORM_{raw}, false"): ("batch_norm_inference", m) for raw, m in _NORMS.items()},
    **{("CUDNN_BATCHNORM_BWD", f"BATCHNORM_{raw}"): ("batch_norm_backward", m) for raw, m in _NORMS.items()},
    ("CUDNN_CONV_BWD_BIAS", ""): ("bias_backward", ""),
    ("CUDNN_DROPOUT_FWD", ""): ("dropout", ""),
    ("CUDNN_DROPOUT_BWD", ""): ("dropout_backward", ""),
}  # fmt: skip
"""(op, variant) of the file → kind and variant of ours; softmax besides, whose mode changes the sizes."""


def _mapped(op: str, variant: str) -> tuple[str, str, bool] | None:
    """Kind, variant, and True where the reduction runs over c·h·w (softmax's instance mode)."""
    if op in ("CUDNN_SOFTMAX_FWD", "CUDNN_SOFTMAX_BWD"):
        algorithm, _, mode = variant.removeprefix("SOFTMAX_").partition(", SOFTMAX_MODE_")
        if algorithm not in _SOFTMAX or mode not in ("CHANNEL", "INSTANCE"):
            return None
        kind = "softmax" if op.endswith("FWD") else "softmax_backward"
        return kind, _SOFTMAX[algorithm], mode == "INSTANCE"
    known = KINDS.get((op, variant))
    return None if known is None else (*known, False)


def read_scope_ops(frame: pd.DataFrame) -> tuple[list[pd.DataFrame], dict[str, int]]:
    """Rows of the file as ours, and counts of what was dropped: fused convolutions, unknown modes, odd pools."""
    dropped: dict[str, int] = {}
    parts = []
    variants = frame["variant"].fillna("").astype(str)
    for key, part in frame.groupby([frame["op"].astype(str), variants]):
        op, variant = (str(text) for text in key)
        mapped = _mapped(op, variant)
        if mapped is None or not set(part["dtype"]) <= set(DTYPES):
            _count(
                dropped,
                f"operator {op} unknown" if "CONV_BIAS" not in op else f"{op} is a convolution",
                len(part),
            )
            continue
        made = _sizes(part, *mapped)
        if mapped[0].endswith(("pool", "pool_backward")):
            fits = (made["window"] <= made["h"] + 2 * made["pad"]) & (
                made["window_w"] <= made["w"] + 2 * made["pad_w"]
            )
            _count(dropped, f"{op}: window exceeds the image", int((~fits).sum()))
            made = made[fits]
        parts.append(made)
    return parts, dropped


def _sizes(part: pd.DataFrame, kind: str, variant: str, instance: bool) -> pd.DataFrame:
    h = output_size(part["h"], part["r"], part["pad_h"], part["stride_h"], 1)
    w = output_size(part["w"], part["s"], part["pad_w"], part["stride_w"], 1)
    c = part["k"]
    if instance:
        c, h, w = c * h * w, 1, 1
    made = part[["gpu", "dtype", "time_us"]].assign(
        kind=kind, variant=variant, library="cudnn", n=part["n"], c=c, h=h, w=w
    )
    if "pool" not in kind:
        return made
    return made.assign(
        window=part["r"], window_w=part["s"], stride=part["stride_h"], stride_w=part["stride_w"],
        pad=part["pad_h"], pad_w=part["pad_w"],
    )  # fmt: skip


def _count(dropped: dict[str, int], reason: str, count: int) -> None:
    if count:
        dropped[reason] = dropped.get(reason, 0) + count
