"""How far off are whole image networks in half precision on GPUs whose convolutions nobody published?

``python -m experiments.image_networks`` fits the law of `surrogate.features.terms.tensor_core` to timm's measured
inference throughputs of half the families of networks and judges it on the other half, on the GPU fitted and on the
other one. ``rows()`` gives the passes of networks held out, by what ships.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import astuple, replace
from functools import cache, partial
from typing import Any
from zlib import crc32

import numpy as np
import pandas as pd

from experiments.experiment import HOME
from surrogate import bundled
from surrogate.features.gpu import gpu
from surrogate.features.problem import ConvColumns
from surrogate.features.terms.kernel import sized
from surrogate.features.terms.tensor_core import LAUNCH_US, STREAMING, TensorCoreLaw
from surrogate.network.calls import add_call
from surrogate.network.fusion import compiled
from surrogate.network.network import Network, Tally
from surrogate.network.predict import load_predictors
from surrogate.network.read import _with_settings
from surrogate.network.torch_module import _calls
from surrogate.prediction.specification import specification_of

PER_FAMILY = 3
"""Networks of a family, drawn by a hash of their names."""
PASS = ["network", "size", "batch"]


def measured() -> pd.DataFrame:
    """Newest passes of every network, in ms: network, family, size, batch, gpu, layout, runtime, software."""
    from timm.models._registry import _model_to_module

    table = pd.read_parquet(HOME / "data" / "networks_timm.parquet").dropna(subset="infer_batch_size")
    table["network"] = table["model"].str.split(".").str[0]
    table = table[table["network"].isin(list(_model_to_module)) & table["torch"].isin(["pt240", "pt291"])]
    # The compiled runs of the older release took other batches and are its first.
    table = table[~(table["compiled"] & (table["torch"] == "pt240"))]
    size = table.groupby("network")["infer_img_size"].transform(lambda sizes: sizes.mode().max())
    table = table[table["infer_img_size"] == size].sort_values("infer_samples_per_sec")
    table = table.drop_duplicates(["network", "file"], keep="last").reset_index(drop=True)
    return table.assign(
        family=table["network"].map(_model_to_module),
        size=table["infer_img_size"],
        batch=table["infer_batch_size"].astype(int),
        gpu="rtx-" + table["gpu"].str.removeprefix("rtx"),
        runtime=np.where(table["compiled"], "compiled", "eager"),
        measured_ms=1e3 * table["infer_batch_size"] / table["infer_samples_per_sec"],
    )[[*PASS, "family", "gpu", "layout", "runtime", "torch", "measured_ms"]]
