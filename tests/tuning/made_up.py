"""A made-up kernel: its times follow from a formula, so that tests know the fastest configuration."""

import itertools

import numpy as np
import pandas as pd

from surrogate.dataset.described import KernelColumns

PARAMETERS = ("block_m", "block_n", "warps", "order")
COLUMNS = KernelColumns(PARAMETERS, ("m", "n"), name="made_up")
VALUES = {"block_m": (16, 32, 64, 128), "block_n": (16, 32, 64), "warps": (2, 4, 8), "order": ("row", "col")}
SHAPES = tuple(itertools.product((64, 256, 1024, 4096), (128, 512, 2048)))
GPUS = {"v100-sxm2-16gb": (1.0, 80), "a100-sxm4-80gb": (0.6, 108), "our own gpu": (0.8, 64)}
"""GPU → relative time of a block, and number of blocks that run at the same time."""


def times(shapes: tuple[tuple[int, int], ...] = SHAPES, gpus: tuple[str, ...] = tuple(GPUS)) -> pd.DataFrame:
    """Return a row for each GPU, shape and configuration; the configuration 128 × 64 with 2 warps fails.

    A launch runs in waves of blocks, and the time of a block grows with its tile.
    """
    rows = list(itertools.product(gpus, shapes, *VALUES.values()))
    names = ("gpu", "shape", *PARAMETERS)
    frame = pd.DataFrame(rows, columns=list(names))
    frame[["m", "n"]] = frame.pop("shape").tolist()
    speed, concurrent = (frame["gpu"].map({name: figures[i] for name, figures in GPUS.items()}) for i in (0, 1))
    blocks = -(-frame["m"] // frame["block_m"]) * -(-frame["n"] // frame["block_n"])
    waves = -(-blocks // concurrent)
    tile = frame["block_m"] * frame["block_n"]
    per_block = 0.5 + tile / 256 * (1 + np.abs(np.log2(tile / (256 * frame["warps"]))) / 4)
    frame["time_us"] = speed * waves * per_block * np.where(frame["order"] == "row", 1.0, 1.1)
    failed = (frame["block_m"] == 128) & (frame["block_n"] == 64) & (frame["warps"] == 2)
    frame["status"] = np.where(failed, "failed", "ok")
    return frame.assign(time_us=frame["time_us"].mask(failed))
