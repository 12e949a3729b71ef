"""Several datasets made one."""

import pandas as pd

from surrogate.dataset.problems import device_names
from surrogate.dataset.schema import ROW_KEY
from surrogate.dataset.store import Dataset
from surrogate.features.errors import InputError


def merge(parts: list[Dataset]) -> Dataset:
    """All rows of all parts; a row key measured in several parts keeps the last part's row.

    A GPU is one device under all its names.

    Raises `InputError` where the parts' candidate lists differ: a censored list and a full one cannot be judged alike.
    """
    if not parts:
        raise InputError("nothing to merge; give at least one dataset")
    kinds = {part.candidates: part.name for part in parts}
    if len(kinds) > 1:
        listed = ", ".join(f"{name} is {kind!r}" for kind, name in kinds.items())
        raise InputError(f"candidate lists differ ({listed}); merge tables of one kind, or set --candidates")
    frame = pd.concat([part.frame for part in parts], ignore_index=True)
    key = [*ROW_KEY, *(["solver"] if "solver" in frame else [])]
    kernels = [part.kernels for part in parts if part.kernels is not None]
    kept = frame[~frame.assign(gpu=device_names(frame)).duplicated(key, keep="last")]
    return Dataset(
        kept.reset_index(drop=True),
        parts[0].candidates,
        "+".join(part.name for part in parts),
        {"parts": [{"name": part.name, **part.metadata} for part in parts]},
        pd.concat(kernels, ignore_index=True) if kernels else None,
    )
