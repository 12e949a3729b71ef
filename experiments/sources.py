"""Where the measurements lie: a folder of parquet files that are read, never copied."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from surrogate.dataset.checks import normalise
from surrogate.dataset.store import Dataset, read_dataset
from surrogate.dataset.tables import read_table
from surrogate.features.errors import InputError, nearest


def beside(script: str) -> dict[str, Any]:
    """What the ``.toml`` of a script's own name holds: names, texts and figures that the script works on."""
    return tomllib.loads(Path(script).with_suffix(".toml").read_text(encoding="utf-8"))


DEFAULT_FOLDER = Path(__file__).resolve().parent / "data"
"""The public measurements that ship with the sources; ``data/README.md`` describes them."""

_NAMES = beside(__file__)
FILES: Mapping[str, Sequence[str]] = _NAMES["files"]
"""Source → file name or folder, and how the file lists candidates where it does not say."""
LABELS: Mapping[str, str] = _NAMES["labels"]
"""How tables and sentences name a source."""
TRACES: Mapping[str, str] = _NAMES["traces"]
"""How they name a trace → its source."""

PAPER_BATCH = 128
PAPER_MIN_US = 1000.0
FORWARD = {"direction": "fwd", "dtype": "fp32", "layout": "NCHW"}
"""The part that SEER is about, and the one with the most shapes in every source."""


@dataclass(frozen=True, slots=True)
class Sources:
    """``folder`` holds the files of `FILES`; ``others`` puts another dataset in the place of one, by source name.

    Raises `InputError` for an unknown source name.
    """

    folder: Path = DEFAULT_FOLDER
    others: Mapping[str, Path] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.others:
            if name not in FILES:
                raise InputError(f"source {name!r} is unknown; known: {', '.join(FILES)}{nearest(name, FILES)}")

    def path(self, name: str) -> Path:
        """The file of a source."""
        return Path(self.others.get(name, self.folder / FILES[name][0]))

    def missing(self, names: Sequence[str]) -> list[Path]:
        """The files among ``names`` that are not there."""
        return [self.path(name) for name in names if not self.path(name).exists()]

    def dataset(self, name: str, where: Mapping[str, str] = FORWARD) -> Dataset:
        """A checked dataset, only the rows where every column of ``where`` holds its value.

        Raises `InputError` where the file is missing or damaged, or no row is left.
        """
        stated = read_table(self.path(name))[1].get("candidates") if name in self.others else FILES[name][1]
        data = read_dataset(self.path(name), candidates=stated)
        frame = data.frame
        for column, value in where.items():
            frame = frame[frame[column] == value]
        if frame.empty:
            wanted = ", ".join(f"{column}={value}" for column, value in where.items())
            raise InputError(f"{self.path(name)}: no row has {wanted}; give a table that has some")
        return data.with_frame(frame)

    def winners(self) -> Dataset:
        """The table of winners as dataset rows: one ok row, that of the fastest algorithm, per problem."""
        path = self.path("winners")
        frame = winner_rows(read_table(path)[0])
        return Dataset(normalise(frame, str(path)), "listed", path.name)


def winner_rows(frame: pd.DataFrame) -> pd.DataFrame:
    """Dataset columns for a table that names the winner by kernel: ``algorithm_guess`` and a whole-number version.

    ``…(implicit_convolve_sgemm)``, a kernel that two algorithms share, counts as IMPLICIT_GEMM; version 8902 is 8.9.2.
    """
    version = frame["library_version"].astype(int)
    texts = {"library": "cudnn", "direction": "fwd", "dtype": "fp32", "math": "fma", "layout": "NCHW"}
    return frame.assign(
        **texts,
        library_version=[f"{v // 1000}.{v // 100 % 10}.{v % 100}" for v in version],
        algorithm=frame["algorithm_guess"].str.split(r"[/(]", n=1, regex=True).str[0],
        status="ok",
    )


def paper_domain(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows of ``frame`` that the paper would keep (batch 128, over 1 ms, square, ungrouped), and the same problems'
    refusals.

    Rows of 1 ms and less are dropped, so that a problem whose best is that fast is no longer measured whole and cannot
    be judged: the paper's pick set, too, wants the best above 1 ms.
    """
    square = (frame["h"] == frame["w"]) & (frame["r"] == frame["s"])
    in_domain = (frame["n"] == PAPER_BATCH) & square & (frame["groups"] == 1)
    slow = (frame["status"] != "ok") | (frame["time_us"] > PAPER_MIN_US)
    return frame[in_domain & slow].reset_index(drop=True)
