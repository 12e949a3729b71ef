"""The workspace and the determinism of candidates, as a training table states them."""

import io
from collections.abc import Sequence
from dataclasses import dataclass, fields
from hashlib import blake2b
from typing import TYPE_CHECKING, Self

import numpy as np

from surrogate.features.errors import InputError
from surrogate.models.json_types import MAX_NUMBER

if TYPE_CHECKING:
    from surrogate.dataset.rows import Rows

FILE = "requirements.npz"
MIN_ROWS = 10
"""Minimum number of rows with the same workspace for other problems to have it, too."""
UNKNOWN = -1
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(32)


@dataclass(frozen=True, eq=False)
class Requirements:
    """Stated workspaces in bytes and determinism; `UNKNOWN` without a statement.

    Attributes
    ----------
    candidate : array of str, (candidates,)
        Names of the candidates.
    deterministic : int64 array, (candidates,)
        1 if all rows of the candidate are deterministic, 0 if one of them is not.
    constant_bytes : int64 array, (candidates,)
        The workspace if all rows, at least `MIN_ROWS`, state the same one.
    row_hash : uint64 array, (rows,)
        Hashes of the measured rows in ascending order.
    row_bytes : int64 array, (rows,)
        Their workspaces. Repeated rows have the largest one.
    """

    candidate: np.ndarray
    deterministic: np.ndarray
    constant_bytes: np.ndarray
    row_hash: np.ndarray
    row_bytes: np.ndarray

    @classmethod
    def fit(cls, rows: "Rows") -> Self | None:
        """Return the statements of the rows, or None if they state nothing or are of a described kernel."""
        from surrogate.dataset.problems import device_names, row_groups

        frame, family = rows.frame, rows.family
        names = {"workspace_bytes", "deterministic"} & {*frame}
        if family.parameter_names or not names or not frame[[*names]].notna().any(axis=None):
            return None
        workspace, deterministic = (
            frame[name].to_numpy(dtype=np.float64, na_value=np.nan) if name in names else np.full(len(frame), np.nan)
            for name in ("workspace_bytes", "deterministic")
        )
        # 1. The statements about each candidate.
        stated: list[tuple[str, int, int]] = []
        keyed = frame.assign(gpu=device_names(frame), candidate=rows.candidate)
        for (name,), index in row_groups(keyed, ("candidate",)):
            same, bits = workspace[index], deterministic[index]
            is_constant = len(index) >= MIN_ROWS and (same == same[0]).all()
            is_deterministic = UNKNOWN if np.isnan(bits).any() and not (bits == 0).any() else int(not (bits == 0).any())
            stated.append((name, is_deterministic, int(same[0]) if is_constant else UNKNOWN))
        # 2. The workspace of each row; the largest one comes first among equal rows.
        hashes = np.zeros(len(frame), dtype=np.uint64)
        for key, index in row_groups(keyed, ("gpu", "candidate", *family.setting_names)):
            hashes[index] = row_hashes(key, rows.sizes[index])
        with_bytes = np.flatnonzero(np.isfinite(workspace))
        with_bytes = with_bytes[np.lexsort((-workspace[with_bytes], hashes[with_bytes]))]
        row_hash, first = np.unique(hashes[with_bytes], return_index=True)
        texts, bits, constant = zip(*stated, strict=True)
        row_bytes = workspace[with_bytes[first]].astype(int)
        return cls(np.array(texts), np.array(bits), np.array(constant), row_hash, row_bytes)

    def is_deterministic(self, candidate: str) -> bool | None:
        """Return whether two runs of a candidate give the same bits; None if that is unknown."""
        stated = self.deterministic[self.candidate == candidate]
        return bool(stated[0]) if len(stated) and stated[0] != UNKNOWN else None

    def workspace_bytes(self, key: Sequence[str], sizes: np.ndarray) -> np.ndarray:
        """Return the workspaces in bytes, (problems,), for ``sizes`` (problems, sizes).

        ``key`` holds the GPU, the candidate and the setting. A measured problem has the workspace of its row, and any
        other problem has the candidate's constant workspace.
        """
        constant = self.constant_bytes[self.candidate == key[1]]
        out = np.full(len(sizes), constant[0] if len(constant) else UNKNOWN)
        hashes = row_hashes(key, sizes)
        position = np.searchsorted(self.row_hash, hashes)
        measured = np.append(self.row_hash, np.uint64(0))[position] == hashes
        out[measured] = self.row_bytes[position[measured]]
        return out

    def to_bytes(self) -> bytes:
        """Return a NumPy archive of the arrays."""
        out = io.BytesIO()
        np.savez_compressed(out, **vars(self))
        return out.getvalue()

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """Return the statements from the output of `to_bytes`. Raise `InputError` if the arrays do not fit together."""
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            stated = cls(*(archive[each.name] for each in fields(cls)))
        candidates = (stated.candidate, stated.deterministic, stated.constant_bytes)
        rows = (stated.row_hash, stated.row_bytes)
        numbers = np.concatenate([*candidates[1:], stated.row_bytes]).astype(np.int64)
        lengths = {each.shape for each in candidates}, {each.shape for each in rows}
        is_sound = all(len(each) == 1 for each in lengths) and stated.row_hash.dtype == np.uint64
        if not is_sound or min(numbers, default=0) < UNKNOWN or max(numbers, default=0) > MAX_NUMBER:
            raise InputError("the stated workspaces do not fit one another; the file is damaged")
        return stated


def row_hashes(key: Sequence[str], sizes: np.ndarray) -> np.ndarray:
    """Return a 64-bit hash (rows,) of the texts ``key`` with each row of the integers ``sizes``, (rows, sizes)."""
    start = int.from_bytes(blake2b("|".join(map(str, key)).encode(), digest_size=8).digest(), "big")
    hashes = np.full(len(sizes), start, dtype=np.uint64)
    for column in sizes.astype(np.uint64).T:
        hashes = (hashes ^ column) * _MULTIPLIER
        hashes ^= hashes >> _SHIFT
    return hashes
