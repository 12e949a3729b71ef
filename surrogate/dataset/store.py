"""Datasets on disk: parquet with the schema's version and the kind of candidate list in its metadata."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from surrogate.dataset.checks import Violation, check, normalise
from surrogate.dataset.columns import CANDIDATES, SCHEMA_VERSION
from surrogate.dataset.files import atomic_path
from surrogate.features.errors import InputError, require_known, require_regular
from surrogate.features.gpu import Gpu, cpu_device

METADATA_KEY = b"seer_surrogate"
MAX_BYTES = 64 << 30
"""Values that a table may declare: beyond it the file is damaged, or too large for one process."""


@dataclass(frozen=True)
class Dataset:
    """A checked table: ``frame`` (columns of `surrogate.dataset.columns`), how its candidates were listed, its name.

    ``metadata`` holds what else the file's own metadata says (provenance, the device's description); ``kernels`` is the
    kernel table that stands beside the file, if there is one.
    """

    frame: pd.DataFrame
    candidates: str = "all"
    name: str = "dataset"
    metadata: dict[str, Any] = field(default_factory=dict)
    kernels: pd.DataFrame | None = None

    @property
    def devices(self) -> dict[str, Gpu]:
        """Devices that the dataset brings with it, by name: CPUs that its own runs measured and described."""
        return devices_in(self.metadata)

    def __len__(self) -> int:
        return len(self.frame)

    def with_frame(self, frame: pd.DataFrame) -> "Dataset":
        """The same dataset over other rows."""
        return replace(self, frame=frame.reset_index(drop=True))


def devices_in(metadata: Mapping[str, Any]) -> dict[str, Gpu]:
    """Devices described in a dataset's metadata, also in that of the parts it was merged from."""
    found: dict[str, Gpu] = {}
    for part in metadata.get("parts", []):
        found |= devices_in(part)
    for run in metadata.get("runs", []):
        device = run["device"]
        if device["library"] == "reference":
            found[device["gpu"]] = cpu_device(device["gpu"], device["properties"])
    return found


def read_table(path: str | Path) -> tuple[pd.DataFrame, dict[str, Any]]:
    """The raw frame of a parquet file and our metadata in it (empty for a foreign file).

    Raises `InputError` for a missing, unreadable, empty or too new file.
    """
    path = Path(path)
    _refuse_text(path)
    require_regular(path)
    if not path.is_file():
        what = "a folder, no file" if path.is_dir() else "no such file"
        raise InputError(f"{path}: {what}; give a parquet dataset; `seer import` and `seer collect` make some")
    frame, stored_metadata = _read_parquet(path)
    if frame.empty:
        raise InputError(f"{path}: the table has no rows; nothing to work on")
    stored = stored_metadata.get(METADATA_KEY)
    return frame, _metadata(stored, path)


def _read_parquet(path: Path) -> tuple[pd.DataFrame, dict[bytes, bytes]]:
    """The columns and the schema's metadata. Raises `InputError` for a damaged file or one that is no parquet."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with path.open("rb") as raw:  # Arrow refuses names that are no UTF-8
            file = pq.ParquetFile(raw)
            declared = file.metadata.num_rows * file.metadata.num_columns * 8
            if declared > MAX_BYTES:
                raise InputError(f"{path}: declares {declared:,} bytes; at most {MAX_BYTES:,} are read")
            table = file.read()
        names = [name for name in table.column_names if not name.startswith("__index_level_")]
        if len(set(names)) < len(names):
            raise InputError(f"{path}: two columns have one name; give each another")
        return table.select(names).to_pandas(ignore_metadata=True), dict(table.schema.metadata or {})
    except InputError:
        raise
    except (pa.ArrowException, MemoryError, OSError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:120]
        raise InputError(f"{path}: cannot be read as parquet ({reason}); fetch or write it again") from None


def _refuse_text(path: Path) -> None:
    """Tell the way from the text files that users have, a run's log or a CSV table, to a dataset."""
    if path.suffix == ".jsonl":
        raise InputError(f"{path}: a run's log; make it a dataset: `seer data merge {path} -o DATA.parquet`")
    if path.suffix in (".csv", ".tsv", ".txt", ".json", ".xls", ".xlsx"):
        raise InputError(
            f"{path}: a dataset is parquet; `seer import` reads the formats that it knows, and pandas writes"
            f" any other table: pandas.read_csv('{path.name}').to_parquet('{path.stem}.parquet')"
        )


def _metadata(stored: bytes | None, path: Path) -> dict[str, Any]:
    if stored is None:
        return {}
    try:
        metadata = json.loads(stored)
        version = int(metadata["schema"])
        devices_in(metadata)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        raise InputError(f"{path}: unreadable metadata; write it again with `seer data merge`") from None
    if version > SCHEMA_VERSION:
        raise InputError(
            f"{path}: written with schema {version}, this release reads up to {SCHEMA_VERSION}; upgrade seer-surrogate"
        )
    return metadata


def read_dataset(path: str | Path, *, candidates: str | None = None) -> Dataset:
    """A dataset, normalised and checked.

    ``candidates`` overrides what the file says (``all`` where it says nothing). Raises `InputError` naming the first
    violation and how many there are.
    """
    frame, metadata = read_table(path)
    frame = normalise(frame, str(path))
    _refuse(check(frame), path)
    chosen = candidates or metadata.get("candidates", "all")
    require_known(f"{path}: candidates", chosen, CANDIDATES)
    beside = kernels_path(path)
    kernels = read_table(beside)[0] if beside.is_file() else None
    return Dataset(frame, chosen, Path(path).name, metadata, kernels)


def as_dataset(data: "Dataset | pd.DataFrame | str | Path") -> Dataset:
    """A dataset from what a caller has: itself, a path, or a table, which is normalised and checked."""
    if isinstance(data, Dataset):
        return data
    if isinstance(data, pd.DataFrame):
        frame = normalise(data, "the table")
        _refuse(check(frame), "the table")
        return Dataset(frame)
    return read_dataset(data)


def _refuse(violations: list[Violation], path: str | Path) -> None:
    if violations:
        more = f" ({len(violations) - 1} more: `seer data check {path}`)" if len(violations) > 1 else ""
        raise InputError(f"{path}: {violations[0]}{more}")


def write_dataset(
    frame: pd.DataFrame,
    path: str | Path,
    *,
    candidates: str = "all",
    kernels: pd.DataFrame | None = None,
    metadata: dict[str, Any] | None = None,
) -> None:
    """Write a dataset (and ``NAME.kernels.parquet`` beside it) atomically: whole, or not at all.

    ``metadata`` must be JSON; the schema version and ``candidates`` join it.
    """
    path = Path(path)
    described = {**(metadata or {}), "schema": SCHEMA_VERSION, "candidates": candidates}
    if kernels is None or kernels.empty:
        write_parquet(frame, path, described)
        other = path.with_suffix(".parquet")
        if path == other or not other.exists():  # an older dataset's kernels are not this one's
            kernels_path(path).unlink(missing_ok=True)
        return
    with atomic_path(kernels_path(path)) as beside:
        _write(kernels, beside, described)
        write_parquet(frame, path, described)


def kernels_path(path: str | Path) -> Path:
    """Where a dataset's kernel table lies: ``NAME.parquet`` → ``NAME.kernels.parquet``."""
    path = Path(path)
    return path.with_name(f"{path.stem}.kernels.parquet")


def write_parquet(frame: pd.DataFrame, path: Path, metadata: dict[str, Any]) -> None:
    """One parquet file with our metadata, by a temporary name in the same folder and a rename."""
    with atomic_path(path) as temporary:
        _write(frame, temporary, metadata)


def _write(frame: pd.DataFrame, path: Path, metadata: dict[str, Any]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_pandas(frame, preserve_index=False)
    merged = {**(table.schema.metadata or {}), METADATA_KEY: json.dumps(metadata, sort_keys=True).encode()}
    with path.open("wb") as file:  # Arrow refuses names that are no UTF-8
        pq.write_table(table.replace_schema_metadata(merged), file, compression="zstd")


def merge(parts: list[Dataset]) -> Dataset:
    """All rows of all parts; a row key measured in several parts keeps the last part's row.

    A GPU is one device under all its names. Raises `InputError` where the parts' candidate lists differ: a censored
    list and a full one cannot be judged alike.
    """
    from surrogate.dataset.columns import SETTING_COLUMNS, SIZE_COLUMNS
    from surrogate.features.gpu import canonical

    if not parts:
        raise InputError("nothing to merge; give at least one dataset")
    kinds = {part.candidates: part.name for part in parts}
    if len(kinds) > 1:
        listed = ", ".join(f"{name} is {kind!r}" for kind, name in kinds.items())
        raise InputError(f"candidate lists differ ({listed}); merge tables of one kind, or set --candidates")
    frame = pd.concat([part.frame for part in parts], ignore_index=True)
    for column in SIZE_COLUMNS:
        if column in frame:  # a family that only one part has
            frame[column] = frame[column].fillna(0).astype("int64")
    key = [c for c in (*SETTING_COLUMNS, *SIZE_COLUMNS, "algorithm", "solver") if c in frame]
    kernels = [part.kernels for part in parts if part.kernels is not None]
    named = frame.assign(gpu=frame["gpu"].map({name: canonical(name) for name in frame["gpu"].unique()}))
    return Dataset(
        frame[~named.duplicated(key, keep="last")].reset_index(drop=True),
        parts[0].candidates,
        "+".join(part.name for part in parts),
        {"parts": [{"name": part.name, **part.metadata} for part in parts]},
        pd.concat(kernels, ignore_index=True) if kernels else None,
    )


def describe(data: Dataset) -> list[dict[str, Any]]:
    """One record per family, device and setting: rows, ok rows, problems, shapes, and how many can be judged."""
    from surrogate.dataset.checks import families_of, family_rows
    from surrogate.dataset.problems import fastest_solver, groups, judged_rows, problem_codes, shape_codes

    records = []
    everything = fastest_solver(data.frame)
    for kind in families_of(everything):
        frame = everything[family_rows(everything, kind)].reset_index(drop=True)
        judged = judged_rows(frame, kind, data.candidates)
        problem, shape = problem_codes(frame, kind), shape_codes(frame, kind)
        names = ("gpu", "library", *kind.setting_names)
        for values, rows in sorted(groups(frame, names), key=lambda group: group[0]):
            counted = rows[judged[rows]]
            records.append(
                {
                    "family": kind.name,
                    **dict(zip(names, values, strict=True)),
                    "versions": sorted(frame["library_version"].iloc[rows].unique()),
                    "candidates": data.candidates,
                    "rows": len(rows),
                    "ok": int((frame["status"].iloc[rows] == "ok").sum()),
                    "problems": len(set(problem[rows])),
                    "shapes": len(set(shape[rows])),
                    "judged_problems": len(set(problem[counted])),
                    "judged_shapes": len(set(shape[counted])),
                }
            )
    return records
