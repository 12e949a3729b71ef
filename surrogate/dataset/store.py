"""Datasets: a checked table with its candidate lists, metadata and kernels; reading, writing, merging, describing."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import Any

import pandas as pd

from surrogate.dataset import problems
from surrogate.dataset.checks import REPEATED, Violation, check_formulas, find_violations, normalise
from surrogate.dataset.columns import CANDIDATES, SCHEMA_VERSION, SIZE_COLUMNS, columns
from surrogate.dataset.described import (
    Kernel,
    KernelOptions,
    described_frame,
    described_key,
    merge_descriptions,
    merge_repeats,
)
from surrogate.dataset.files import STDOUT
from surrogate.dataset.tables import devices_in, read_table, table_writer, write_table
from surrogate.features.description import Description, description_of
from surrogate.features.errors import InputError, RowError, check_choice
from surrogate.features.families import FAMILIES, DescribedFamily
from surrogate.features.gpu import Gpu


@dataclass(frozen=True)
class Dataset:
    """A checked table of measurements with its metadata.

    Parameters
    ----------
    frame : DataFrame
        One row per (GPU, library, version, setting, problem, algorithm[, solver]), with the columns of
        `surrogate.dataset.columns`. Times are in µs.
    candidates : {"all", "listed"}
        ``all``: every algorithm was tried, so a missing row is unmeasured. ``listed``: a censored list.
    name : str
        The name in messages and reports, usually the file's name.
    metadata : dict
        Other metadata of the file: provenance, descriptions of devices.
    kernels : DataFrame, optional
        The kernel table in ``NAME.kernels.parquet``, if the file exists.
    description : Description, optional
        The described kernel of all rows, if a user described one.
    """

    frame: pd.DataFrame
    candidates: str = "all"
    name: str = "dataset"
    metadata: dict[str, Any] = field(default_factory=dict)
    kernels: pd.DataFrame | None = None
    description: Description | None = None

    @property
    def described_family(self) -> DescribedFamily | None:
        """Return the family of the described kernel, or None."""
        return FAMILIES.from_description(self.description) if self.description else None

    @property
    def devices(self) -> dict[str, Gpu]:
        """Return name → device for the devices in the metadata: CPUs that its runs measured and described."""
        return devices_in(self.metadata)

    def __len__(self) -> int:
        return len(self.frame)

    def with_frame(self, frame: pd.DataFrame) -> "Dataset":
        """Return the same dataset with other rows."""
        return replace(self, frame=frame.reset_index(drop=True))


def read_dataset(
    path: str | Path, *, candidates: str | None = None, kernel: Kernel | str | Path | None = None
) -> Dataset:
    """Read, normalise and check a dataset.

    Parameters
    ----------
    path : str or Path
        A parquet, CSV or JSON file.
    candidates : {"all", "listed"}, optional
        Overrides the file's metadata. Without both, the default is ``all``, and ``listed`` for a described kernel.
    kernel : Description, KernelColumns, str or Path, optional
        The described kernel of all rows, or the path of its description. The default is the kernel in the file's
        metadata, if there is one.

    Returns
    -------
    Dataset

    Raises
    ------
    InputError
        If the file cannot be read, or with its first violation and the number of violations.
    """
    frame, metadata = read_table(path)
    data = _dataset(frame, path, metadata, KernelOptions(kernel).description_or_columns)
    listing = candidates or metadata.get("candidates", data.candidates)
    check_choice(f"{path}: candidates", listing, CANDIDATES)
    kernels_file = kernels_path(path)
    return replace(data, candidates=listing, kernels=read_table(kernels_file)[0] if kernels_file.is_file() else None)


def _dataset(frame: pd.DataFrame, path: str | Path, metadata: dict[str, Any], kernel: Kernel | None) -> Dataset:
    """Return the checked dataset of a raw table. The caller or the metadata may describe its kernel."""
    data, violations = check_table(frame, path, metadata, kernel)
    if violations:
        more = f" ({len(violations) - 1} more: `seer data check {path}`)" if len(violations) > 1 else ""
        raise RowError(path, violations[0].row, f"{violations[0]}{more}")
    return data


def check_table(
    frame: pd.DataFrame, path: str | Path, metadata: dict[str, Any], kernel: Kernel | None = None
) -> tuple[Dataset, list[Violation]]:
    """Return the normalised dataset of a raw table, and the violations in its rows (`find_violations`)."""
    description = None
    if kernel is not None:
        description = kernel if isinstance(kernel, Description) else kernel.of(frame, path)
    elif "kernel" in metadata:
        description = description_of(metadata["kernel"], f"{path}: its metadata's kernel")
    if description is None:
        frame = normalise(frame, str(path))
        found = find_violations(frame)
        violations = [each for each in found if each.rule != REPEATED]
        if len(violations) < len(found) and not violations:
            ignored = [column.name for column in columns("dataset")]
            frame, repeats = merge_repeats(frame, problems.key_columns(frame), ignored, str(path))
            metadata = {**metadata, "repeats": repeats}
    else:
        family = FAMILIES.from_description(description)
        frame = described_frame(frame, description, str(path))
        violations = find_violations(frame, family)
        check_formulas(frame, family, str(path))
        frame, repeats = merge_repeats(frame, described_key(description), description.parameters, str(path))
        metadata = {**metadata, "kernel": description.to_dict(), **({"repeats": repeats} if repeats else {})}
    listing = "all" if description is None else "listed"
    return Dataset(frame, listing, name=Path(path).name, metadata=metadata, description=description), violations


Data = Dataset | pd.DataFrame | str | Path | list[Any] | tuple[Any, ...]
"""Measurements as an argument of functions: a dataset, a table, a path, or a list of them."""


def as_dataset(data: Data, kernel: Kernel | None = None) -> Dataset:
    """Return the dataset of a path or a table (normalised and checked), of a `Dataset` (unchanged), or of a list.

    ``kernel`` describes the kernel of the rows. Raises `InputError` for another type.
    """
    if isinstance(data, Dataset):
        return data
    if isinstance(data, list | tuple):
        return merge_datasets([as_dataset(part, kernel) for part in data])
    if isinstance(data, pd.DataFrame):
        return replace(_dataset(data, "the table", {}, kernel), name="dataset")
    if not isinstance(data, str | Path):
        raise InputError(f"a {type(data).__name__} is no dataset; give a path, a table, a Dataset, or a list")
    return read_dataset(data, kernel=kernel)


def write_dataset(
    frame: pd.DataFrame,
    path: str | Path,
    *,
    candidates: str = "all",
    kernels: pd.DataFrame | None = None,
    metadata: dict[str, object] | None = None,
) -> None:
    """Write a dataset atomically, and its kernel table to ``NAME.kernels.parquet``.

    Parameters
    ----------
    frame : DataFrame
        The rows, with the columns of `surrogate.dataset.columns`; times in µs.
    path : str or Path
        The file; its ending gives the format: parquet, or text (CSV, JSON), which has no metadata.
    candidates : {"all", "listed"}
        See `Dataset`.
    kernels : DataFrame, optional
        The kernel table.
    metadata : dict, optional
        JSON values; the schema version and ``candidates`` are added.

    Raises
    ------
    InputError
        If the file cannot be written, or if its ending is no format of tables.
    """
    path = Path(path)
    all_metadata = {**(metadata or {}), "schema": SCHEMA_VERSION, "candidates": candidates}
    if path == STDOUT or kernels is None or kernels.empty:
        write_table(frame, path, all_metadata)
        parquet = path.with_suffix(".parquet")
        if path == parquet or not parquet.exists():  # a kernel table of an older dataset does not belong to this one
            kernels_path(path).unlink(missing_ok=True)
        return
    with table_writer(kernels_path(path), all_metadata) as write_kernels:
        write_kernels(kernels)
        write_table(frame, path, all_metadata)


def kernels_path(path: str | Path) -> Path:
    """Return the path of a dataset's kernel table: ``NAME.parquet`` → ``NAME.kernels.parquet``."""
    path = Path(path)
    return path.with_name(f"{path.stem}.kernels.parquet")


def merge_datasets(parts: list[Dataset]) -> Dataset:
    """Return the rows of all parts. If several parts have a row with the same key, the last part's row counts.

    Aliases of a GPU are the same device. Raises `InputError` if the kinds of candidate lists differ, because a censored
    list and a complete one are evaluated differently.
    """
    if not parts:
        raise InputError("nothing to merge; give at least one dataset")
    lists = {part.candidates: part.name for part in parts}
    if len(lists) > 1:
        listed = ", ".join(f"{name} is {candidates!r}" for candidates, name in lists.items())
        raise InputError(f"candidate lists differ ({listed}); merge tables of one kind, or set --candidates")
    frame = pd.concat([part.frame for part in parts], ignore_index=True)
    description = common_kernel(parts)
    for column in SIZE_COLUMNS:
        if column in frame:  # a part without the family does not have the column
            frame[column] = frame[column].fillna(0).astype("int64")
    key = problems.key_columns(frame, description and FAMILIES.from_description(description))
    keyed = frame.assign(gpu=problems.device_names(frame))
    frame = frame[~keyed.duplicated(key, keep="last")].reset_index(drop=True)
    tables = [part.kernels for part in parts if part.kernels is not None]
    kernels = pd.concat(tables, ignore_index=True) if tables else None
    metadata: dict[str, Any] = {"parts": [{"name": part.name, **part.metadata} for part in parts]}
    if description is not None:
        metadata["kernel"] = description.to_dict()
    name = "+".join(part.name for part in parts)
    return Dataset(frame, parts[0].candidates, name, metadata, kernels, description=description)


def common_kernel(parts: Sequence[Dataset]) -> Description | None:
    """Return the described kernel of all parts, with the values of all; None if no part has a described kernel.

    Raises `InputError` if the parts have several kernels.
    """
    kernels = [part.description for part in parts if part.description is not None]
    if not kernels:
        return None
    if len(kernels) < len(parts):
        raise InputError(f"rows of the described kernel {kernels[0].name} and others do not merge; keep them apart")
    return reduce(merge_descriptions, kernels)


def summarise_dataset(data: Dataset) -> list[dict[str, object]]:
    """Return a record per family, device and setting: counts of rows, ok rows, problems, shapes, evaluated."""
    records = []
    table = data.frame if data.description else problems.fastest_solver(data.frame)
    for family in problems.families_of(table, data.described_family):
        frame = table[problems.family_rows(table, family)].reset_index(drop=True)
        evaluated = problems.evaluation_rows(frame, family, data.candidates)
        problem = problems.problem_codes(frame, family)
        shape = problems.shape_codes(frame, family)
        if family.parameter_names:  # shape codes may be GPUs or configurations, so shapes are counted anew
            shape = frame.groupby([*family.shape_names, *family.setting_names], dropna=False).ngroup().to_numpy()
        names = ("gpu", "library", *family.setting_names)
        for values, rows in sorted(problems.row_groups(frame, names), key=lambda group: group[0]):
            counted = rows[evaluated[rows]]
            versions = sorted(frame["library_version"].iloc[rows].unique())
            setting = {"family": family.name, **dict(zip(names, values, strict=True)), "versions": versions}
            counts = {"rows": len(rows), "ok": int((frame["status"].iloc[rows] == "ok").sum())}
            counts |= {"problems": len(set(problem[rows])), "shapes": len(set(shape[rows]))}
            counts |= {"judged_problems": len(set(problem[counted])), "judged_shapes": len(set(shape[counted]))}
            records.append({**setting, "candidates": data.candidates, **counts})
    return records


def candidate_frame(data: Dataset, candidate: str) -> pd.DataFrame:
    """Return the candidates' rows, of all families: every ``solver``, or each ``algorithm`` by its fastest solver.

    Raises `InputError` for another ``candidate``, and if the table has no column of solvers.
    """
    check_choice("candidate", candidate, ("algorithm", "solver"))
    if candidate == "algorithm" and data.description is None:  # a described kernel's candidates are its configurations
        return problems.fastest_solver(data.frame)
    if "solver" not in data.frame:
        raise InputError("candidate solver needs a `solver` column, which this table lacks; use algorithm")
    return data.frame
