"""Random damage inside valid files: JSON, arrays, tables, and any bytes, drawn by a seeded `Random`."""

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pandas as pd

ODD: tuple[Any, ...] = (
    *(None, True, -1, 0, 0.5, 7, 2**70, 1e308, -1e30, float("nan"), float("inf"), "", "x", "1|2"),
    *([], [[]], {}, [0.5], {"x": 1}),
)


def damaged_json(content: bytes, random: Random, odd: Sequence[Any] = ODD) -> bytes:
    """Return a document with one damaged value at any depth.

    The value is missing, doubled, renamed, of another kind (in ``odd``), or nested deeply.
    """
    document = {"": json.loads(content)}
    holder: Any = document
    key: Any = ""
    while isinstance(holder[key], dict | list) and holder[key] and random.random() < 0.85:
        holder = holder[key]
        key = random.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
    value = holder[key]
    how = random.randrange(6)
    if how < 3:
        number = isinstance(value, int | float) and random.random() < 0.5
        holder[key] = value * random.choice((-1, 0, 1e9, 1e300)) if number else random.choice(odd)
    elif how == 3 and key != "":
        del holder[key]
    elif how == 4 and isinstance(holder, dict):
        holder[f"{key}x"] = holder.pop(key)
    else:
        holder[key] = [value, value]
    text = json.dumps(next(iter(document.values()), None))
    return (f"{'[' * 900}{text}{']' * 900}" if random.random() < 0.02 else text).encode()


def damaged_array(array: np.ndarray, random: Random) -> np.ndarray:
    """Return an array of another type, length or shape, or with other values in some places."""
    odd = random.choice((-1, 0, 1, len(array), 2**31 - 1, -(2**31), float("nan"), float("inf"), 1e38))
    values = array.copy()
    with np.errstate(invalid="ignore"):
        values[random.sample(range(len(array)), random.choice((1, len(array))))] = np.float64(odd).astype(array.dtype)
    changed = (
        array.astype(random.choice(("f8", "i8", "i2", "U8", "?", "c8"))),
        array[: len(array) // 2],
        np.concatenate([array, array]),
        array[:, None],
        values,
        values,
    )
    return random.choice(changed)


def damaged_npz(content: bytes, random: Random) -> bytes:
    """Return a NumPy archive with one array changed, replaced by another one, or missing."""
    arrays = dict(np.load(io.BytesIO(content)))
    name, other = random.choices(list(arrays), k=2)
    arrays[name] = arrays[other] if random.random() < 0.2 else damaged_array(arrays[name], random)
    if random.random() < 0.05:
        del arrays[name]
    out = io.BytesIO()
    np.savez_compressed(out, **arrays)
    return out.getvalue()


def damaged_parquet(content: bytes, random: Random) -> bytes:
    """Return a table with one column changed, empty, missing or renamed, without rows, or with another order of
    columns."""
    frame = pd.read_parquet(io.BytesIO(content))
    name = random.choice(list(frame.columns))
    values = damaged_array(frame[name].to_numpy(), random)
    fits = values.shape == (len(frame),) and values.dtype.kind != "c"
    changed = (
        frame.assign(**{name: values if fits else None}),
        frame.assign(**{name: values if fits else "x"}),
        frame.drop(columns=name),
        frame.rename(columns={name: "x"}),
        frame.iloc[:0],
        frame.iloc[:, ::-1],
    )
    out = io.BytesIO()
    random.choice(changed).to_parquet(out)
    return out.getvalue()


def damaged_bytes(content: bytes, random: Random) -> bytes:
    """Return the file cut short, or with some inverted bits."""
    if random.random() < 0.4:
        return content[: random.randrange(len(content))]
    changed = bytearray(content)
    for _ in range(random.randint(1, 8)):
        changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    return bytes(changed)


DAMAGE = {"json": damaged_json, "npz": damaged_npz, "parquet": damaged_parquet}


def write(files: Mapping[str, bytes], folder: Path) -> Path:
    """Write these files to the folder and return it."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder
