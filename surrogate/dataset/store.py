"""Datasets: a checked table with its candidate lists, metadata and kernels; reading, writing, merging, describing."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import Any

import pandas as pd

from surrogate.dataset import problems
from surrogate.dataset.checks import Violation, check_formulas, find_violations, normalise
from surrogate.dataset.columns import CANDIDATES, SCHEMA_VERSION, SIZE_COLUMNS
from surrogate.dataset.described import Kernel, described_frame, merge_descriptions, merge_repeats
from surrogate.dataset.files import STDOUT
from surrogate.dataset.tables import devices_in, read_table, table_writer, write_table
from surrogate.features.description import Description, description_of
from surrogate.features.errors import InputError, RowError, check_choice
from surrogate.features.families import FAMILIES, DescribedFamily
from surrogate.features.gpu import Gpu


@dataclass(frozen=True)
class Dataset:
    """A checked table: ``frame`` (columns of `surrogate.dataset.columns`), how its candidates were listed, its name.

    ``metadata`` holds what else the file's own metadata says (provenance, the device's description); ``kernels`` is the
    kernel table that stands beside the file, if there is one; ``described`` the kernel that all rows are of, where a
    user described it.
    """

    frame: pd.DataFrame
    candidates: str = "all"
    name: str = "dataset"
    metadata: dict[str, Any] = field(default_factory=dict)
    kernels: pd.DataFrame | None = None
    described: Description | None = None

    @property
    def own(self) -> DescribedFamily | None:
        """The family of the described kernel."""
        return FAMILIES.from_description(self.described) if self.described else None

    @property
    def devices(self) -> dict[str, Gpu]:
        """Devices that the dataset brings with it, by name: CPUs that its own runs measured and described."""
        return devices_in(self.metadata)

    def __len__(self) -> int:
        return len(self.frame)

    def with_frame(self, frame: pd.DataFrame) -> "Dataset":
        """The same dataset over other rows."""
        return replace(self, frame=frame.reset_index(drop=True))


def read_dataset(path: str | Path, *, candidates: str | None = None, kernel: Kernel | None = None) -> Dataset:
    """A dataset, normalised and checked.

    ``candidates`` overrides what the file says (where it says nothing ``all``, of a described kernel ``listed``);
    ``kernel`` says what the columns are, else the file's own metadata may. Raises `InputError` naming the first
    violation and how many there are.
    """
    frame, metadata = read_table(path)
    data = _dataset(frame, path, metadata, kernel)
    chosen = candidates or metadata.get("candidates", data.candidates)
    check_choice(f"{path}: candidates", chosen, CANDIDATES)
    beside = kernels_path(path)
    return replace(data, candidates=chosen, kernels=read_table(beside)[0] if beside.is_file() else None)


def _dataset(frame: pd.DataFrame, path: str | Path, metadata: dict[str, Any], kernel: Kernel | None) -> Dataset:
    """The checked dataset of a raw table, whose kernel the caller or the metadata may describe."""
    data, violations = check_table(frame, path, metadata, kernel)
    if violations:
        more = f" ({len(violations) - 1} more: `seer data check {path}`)" if len(violations) > 1 else ""
        raise RowError(path, violations[0].row, f"{violations[0]}{more}")
    return data


def check_table(
    frame: pd.DataFrame, path: str | Path, metadata: dict[str, Any], kernel: Kernel | None = None
) -> tuple[Dataset, list[Violation]]:
    """The normalised dataset of a raw table, and what `find_violations` finds in the table's rows."""
    described = None
    if kernel is not None:
        described = kernel if isinstance(kernel, Description) else kernel.of(frame, path)
    elif "kernel" in metadata:
        described = description_of(metadata["kernel"], f"{path}: its metadata's kernel")
    if described is None:
        frame = normalise(frame, str(path))
        violations = find_violations(frame)
    else:
        family = FAMILIES.from_description(described)
        frame = described_frame(frame, described, str(path))
        violations = find_violations(frame, family)
        check_formulas(frame, family, str(path))
        frame, repeats = merge_repeats(frame, described, str(path))
        metadata = {**metadata, "kernel": described.to_plain(), **({"repeats": repeats} if repeats else {})}
    listing = "all" if described is None else "listed"
    return Dataset(frame, listing, name=Path(path).name, metadata=metadata, described=described), violations


Data = Dataset | pd.DataFrame | str | Path | list[Any] | tuple[Any, ...]
"""What functions take as measurements: a dataset, a table, a path, or a list of them."""


def as_dataset(data: Data, kernel: Kernel | None = None) -> Dataset:
    """A dataset from what a caller has: itself, a path, a table, which is normalised and checked, or several of these.

    ``kernel`` says what the columns are. Raises `InputError` for anything else.
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
    """Write a dataset (and ``NAME.kernels.parquet`` beside it) atomically: whole, or not at all.

    ``metadata`` must be JSON; the schema version and ``candidates`` join it. What is written as text (see
    `surrogate.dataset.tables`) keeps the rows and no metadata.
    """
    path = Path(path)
    described = {**(metadata or {}), "schema": SCHEMA_VERSION, "candidates": candidates}
    if path == STDOUT or kernels is None or kernels.empty:
        write_table(frame, path, described)
        other = path.with_suffix(".parquet")
        if path == other or not other.exists():  # an older dataset's kernels are not this one's
            kernels_path(path).unlink(missing_ok=True)
        return
    with table_writer(kernels_path(path), described) as write_kernels:
        write_kernels(kernels)
        write_table(frame, path, described)


def kernels_path(path: str | Path) -> Path:
    """Where a dataset's kernel table lies: ``NAME.parquet`` → ``NAME.kernels.parquet``."""
    path = Path(path)
    return path.with_name(f"{path.stem}.kernels.parquet")


def merge_datasets(parts: list[Dataset]) -> Dataset:
    """All rows of all parts; a row key measured in several parts keeps the last part's row.

    A GPU is one device under all its names. Raises `InputError` where the parts' candidate lists differ: a censored
    list and a full one cannot be judged alike.
    """
    if not parts:
        raise InputError("nothing to merge; give at least one dataset")
    lists = {part.candidates: part.name for part in parts}
    if len(lists) > 1:
        listed = ", ".join(f"{name} is {candidates!r}" for candidates, name in lists.items())
        raise InputError(f"candidate lists differ ({listed}); merge tables of one kind, or set --candidates")
    frame = pd.concat([part.frame for part in parts], ignore_index=True)
    described = common_kernel(parts)
    for column in SIZE_COLUMNS:
        if column in frame:  # a family that only one part has
            frame[column] = frame[column].fillna(0).astype("int64")
    key = problems.key_columns(frame, described and FAMILIES.from_description(described))
    named = frame.assign(gpu=problems.device_names(frame))
    frame = frame[~named.duplicated(key, keep="last")].reset_index(drop=True)
    tables = [part.kernels for part in parts if part.kernels is not None]
    kernels = pd.concat(tables, ignore_index=True) if tables else None
    metadata: dict[str, Any] = {"parts": [{"name": part.name, **part.metadata} for part in parts]}
    if described is not None:
        metadata["kernel"] = described.to_plain()
    name = "+".join(part.name for part in parts)
    return Dataset(frame, parts[0].candidates, name, metadata, kernels, described=described)


def common_kernel(parts: Sequence[Dataset]) -> Description | None:
    """The described kernel of all parts, with the values of each; None where none is one's.

    Raises `InputError` where parts are of two kernels.
    """
    described = [part.described for part in parts if part.described is not None]
    if not described:
        return None
    if len(described) < len(parts):
        raise InputError(f"rows of the described kernel {described[0].name} and others do not merge; keep them apart")
    return reduce(merge_descriptions, described)


def summarise_dataset(data: Dataset) -> list[dict[str, object]]:
    """One record per family, device and setting: rows, ok rows, problems, shapes, and how many can be judged."""
    records = []
    everything = data.frame if data.described else problems.fastest_solver(data.frame)
    for family in problems.families_of(everything, data.own):
        frame = everything[problems.family_rows(everything, family)].reset_index(drop=True)
        evaluated = problems.evaluation_rows(frame, family, data.candidates)
        problem = problems.problem_codes(frame, family)
        shape = problems.shape_codes(frame, family)
        if family.parameter_names:  # folds of one problem are of GPUs or configurations, which are no shapes
            shape = frame.groupby([*family.shape_names, *family.setting_names], dropna=False).ngroup().to_numpy()
        names = ("gpu", "library", *family.setting_names)
        for values, rows in sorted(problems.row_groups(frame, names), key=lambda group: group[0]):
            counted = rows[evaluated[rows]]
            records.append(
                {
                    "family": family.name,
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


def candidate_frame(data: Dataset, candidate: str) -> pd.DataFrame:
    """The rows to choose among, of all families: of each ``algorithm`` its fastest solver, or every ``solver``.

    Raises `InputError` for another ``candidate``, and for solvers that the table does not name.
    """
    check_choice("candidate", candidate, ("algorithm", "solver"))
    if candidate == "algorithm" and data.described is None:  # what can be chosen of a kernel are its configurations
        return problems.fastest_solver(data.frame)
    if "solver" not in data.frame:
        raise InputError("candidate solver needs a `solver` column, which this table lacks; use algorithm")
    return data.frame
