"""``cudnn_other_ops.parquet``: cuDNN and cuBLAS calls whose sizes are packed into a text, ``key=value;key=value;…``.

The grammar, inferred from the rows. Keys are ``name`` or ``name[i]``, values whole numbers.

- activation, batch norm, op tensor: ``input[0..3]`` = n, c, h, w (``input[0..1]`` = n, c of a matrix).
- add tensor: the same, with ``bias[0..3]`` = 1, c, 1, 1.
- pooling: the same, with ``filter_height filter_width pad_height pad_width stride_height stride_width``.
- GEMM: ``input[0..2]`` = M, N, K, then transposes (0, 1 everywhere: NT), α and β.
- GEMV: ``input[0..1]`` = M, K (n = 1), then the transpose, α, β.
- ``batch_size`` is the network's batch: ``input[0]`` repeats it, and GEMV does not depend on it.
- ``iterations`` marks another harness, whose times are 8 to 6,000 times longer and hardly depend on sizes: dropped.
"""

import re

import pandas as pd

_PAIR = re.compile(r"([a-z_]+(?:\[\d\])?)=(\d+)")
_BATCH_NORM = {
    "BATCHNORM_PER_ACTIVATION": "PER_ACTIVATION",
    "BATCHNORM_SPATIAL": "",
    "BATCHNORM_SPATIAL_PERSISTENT": "SPATIAL_PERSISTENT",
}
KINDS: dict[tuple[str, str], tuple[str, str]] = {
    ("CUDNN_ACTIVATION_FWD", "ACTIVATION_RELU"): ("relu", ""),
    ("CUDNN_ACTIVATION_FWD", "ACTIVATION_CLIPPED_RELU"): ("clipped_relu", ""),
    **{("CUDNN_BATCHNORM_FWD_TRAINING", raw): ("batch_norm", mode) for raw, mode in _BATCH_NORM.items()},
    **{("CUDNN_BATCHNORM_FWD_INFERENCE", raw): ("batch_norm_inference", m) for raw, m in _BATCH_NORM.items()},
    ("CUDNN_ADD_TENSOR", ""): ("bias", ""),
    ("CUDNN_OP_TENSOR_ADD_FWD", ""): ("add", ""),
    ("CUDNN_POOLING_FWD", "POOLING_MAX"): ("max_pool", ""),
    ("CUDNN_POOLING_FWD", "POOLING_MAX_DETERMINISTIC"): ("max_pool", "DETERMINISTIC"),
    ("CUBLAS_GEMM_FWD", ""): ("gemm", "NT"),
    ("CUBLAS_GEMV_FWD", ""): ("gemm", "GEMV"),
}
"""(op, variant) of the file → kind and variant of ours."""
_POOL = {
    "window": "filter_height", "window_w": "filter_width", "pad": "pad_height", "pad_w": "pad_width",
    "stride": "stride_height", "stride_w": "stride_width",
}  # fmt: skip


def parse_args(text: str) -> dict[str, int] | None:
    """Key → value of an ``args`` text; None where a part of it is no pair."""
    found: dict[str, int] = {}
    for part in text.split(";"):
        match = _PAIR.fullmatch(part)
        if match is None or match[1] in found:
            return None
        found[match[1]] = int(match[2])
    return found


def sizes_of(kind: str, variant: str, args: dict[str, int]) -> dict[str, int] | None:
    """Our sizes of a kind from parsed arguments; None where some are missing."""
    inputs = [args.get(f"input[{i}]") for i in range(4)]
    if kind == "gemm":
        m, n, k = (inputs[0], 1, inputs[1]) if variant == "GEMV" else inputs[:3]
        return _complete({"batch": 1, "m": m, "n": n, "k": k})
    image = {"n": inputs[0], "c": inputs[1], "h": inputs[2], "w": inputs[3]}
    if inputs[2] is None and inputs[3] is None and kind != "max_pool":
        image |= {"h": 1, "w": 1}
    if kind == "max_pool":
        image |= {ours: args.get(theirs) for ours, theirs in _POOL.items()}
    return _complete(image)


def _complete(sizes: dict[str, int | None]) -> dict[str, int] | None:
    given = {name: size for name, size in sizes.items() if size is not None}
    return given if len(given) == len(sizes) else None


def read_other_ops(frame: pd.DataFrame) -> tuple[list[pd.DataFrame], dict[str, int]]:
    """Rows of the file as ours, library cudnn or cublas, and counts of what was dropped."""
    dropped: dict[str, int] = {}
    rows, positions = [], []
    known = {text: parse_args(text) for text in frame["args"].unique()}
    variants = frame["variant"].fillna("").astype(str)
    for position, (op, variant, text) in enumerate(zip(frame["op"], variants, frame["args"], strict=True)):
        mapped, args = KINDS.get((op, variant)), known[text]
        sizes = sizes_of(*mapped, args) if mapped and args is not None else None
        if mapped is None:
            reason = f"operator {op} {variant}".strip() + " unknown"
        elif args is None or sizes is None:
            reason = f"args of {op} unreadable"
        elif "iterations" in args:
            reason = "timed by another harness (iterations)"
        else:
            library = "cublas" if op.startswith("CUBLAS") else "cudnn"
            rows.append({"kind": mapped[0], "variant": mapped[1], "library": library, **sizes})
            positions.append(position)
            continue
        dropped[reason] = dropped.get(reason, 0) + 1
    if not rows:
        return [], dropped
    taken = frame.iloc[positions].reset_index(drop=True)
    given = taken[["gpu", "dtype", "time_us"]].assign(library_version=taken["cudnn"])
    return [pd.concat([pd.DataFrame(rows), given], axis=1)], dropped
