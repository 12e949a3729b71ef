"""Problems from any file that lists them: a table (parquet, CSV), lines of text, JSON lines, SEER's Test-set-II."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from surrogate.collect.plan import PlannedProblem, unique
from surrogate.dataset.schema import SIZE_COLUMNS
from surrogate.features.conv import Conv
from surrogate.features.errors import InputError
from surrogate.features.regular_file import require_regular

SETTINGS = ("dtype", "math", "layout", "direction")
_NEEDED = ("n", "c", "h", "k", "r")


def read_convs(path: str | Path) -> list[Conv]:
    """The distinct problems of a file, in its order, with their own settings (fp32 fma NCHW fwd where it has none).

    Raises `InputError` that names the file and what is wrong with it.
    """
    return [planned.conv for planned in read_planned(path)]


def read_planned(path: str | Path) -> list[PlannedProblem]:
    """As `read_convs`, with the networks that a table or plan names."""
    if _is_parquet(Path(path)):
        from surrogate.dataset.store import read_table

        return unique(_table_problems(read_table(path)[0], path))
    from surrogate.collect.plan_file import file_problems

    return unique(file_problems(path))


def _is_parquet(path: Path) -> bool:
    """By content, so that the name does not matter."""
    require_regular(path)
    try:
        with path.open("rb") as file:
            return file.read(4) == b"PAR1"
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read ({error.strerror}); give a list or table of problems"
        ) from None


def _table_problems(frame: pd.DataFrame, path: str | Path) -> list[PlannedProblem]:
    """One problem per distinct combination; rows per algorithm or GPU repeat a problem."""
    missing = [name for name in _NEEDED if name not in frame]
    if missing:
        raise InputError(
            f"{path}: column {', '.join(missing)} missing; a table of problems has {', '.join(SIZE_COLUMNS)}"
        )
    columns = [name for name in (*SIZE_COLUMNS, *SETTINGS) if name in frame]
    networks = frame["networks"] if "networks" in frame else pd.Series("", index=frame.index)
    distinct = (
        frame[columns]
        .assign(networks=networks.astype(object).fillna("").astype(str))
        .drop_duplicates(columns)
    )
    found = []
    for row, values in enumerate(distinct.to_dict("records")):
        names = tuple(name.strip() for name in str(values.pop("networks")).split(",") if name.strip())
        try:
            found.append(PlannedProblem(_conv(values), "table", names))
        except InputError as error:
            raise InputError(f"{path}: problem {row}: {error}") from None
    return found


def _conv(values: Mapping[Any, Any]) -> Conv:
    from surrogate.dataset.schema import LAYOUT_ALIASES

    known = {str(name): value for name, value in values.items() if not pd.isna(value)}
    for name in _NEEDED:
        if name not in known:
            raise InputError(f"{name} is empty; every problem needs {', '.join(_NEEDED)}")
    if "layout" in known:
        known["layout"] = LAYOUT_ALIASES.get(known["layout"], known["layout"])
    return Conv(**known)
