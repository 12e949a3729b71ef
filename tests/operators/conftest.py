"""Invented tables of operators: test data, no measurement."""

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from surrogate.features.gpu import gpu
from surrogate.operators.baselines.roofline import roofline_us
from surrogate.operators.table import OperatorTable, make_table


def invented(rows: int, seed: int = 0, gpus: tuple[str, ...] = ("t4", "v100-pcie-32gb")) -> OperatorTable:
    """relu, softmax and bmm under torch; time = call + slope · roofline, with 3 % noise."""
    random = np.random.default_rng(seed)
    parts = []
    for device in gpus:
        for kind in ("relu", "softmax", "bmm"):
            sizes = 2 ** random.uniform(3, 12, (rows, 4))
            names = ("batch", "m", "n", "k") if kind == "bmm" else ("n", "c", "h", "w")
            whole = sizes.astype(int)
            if kind == "bmm":
                whole[:, 0] = np.minimum(whole[:, 0], 64)
            else:
                whole[:, 2:] = 1
            frame = pd.DataFrame(dict(zip(names, whole.T, strict=True)))
            parts.append(frame.assign(gpu=device, library="torch", kind=kind, time_us=1.0))
    table = make_table(parts, {}, "invented")
    noise = np.exp(0.03 * random.normal(size=len(table)))
    call_us = table.frame["gpu"].map({name: 400.0 / gpu(name).sms for name in gpus}).to_numpy()
    slope = table.frame["kind"].map({"relu": 1.3, "softmax": 2.0, "bmm": 1.6}).to_numpy()
    time_us = (call_us + slope * roofline_us(table)) * noise
    return OperatorTable(table.frame.assign(time_us=time_us), {}, "invented")


@pytest.fixture(scope="session")
def operators() -> OperatorTable:
    """About 900 rows on two GPUs."""
    return invented(150)


@pytest.fixture(scope="session")
def make_operators() -> Callable[..., OperatorTable]:
    """`invented`."""
    return invented
