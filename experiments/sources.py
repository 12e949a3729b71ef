"""The measurements: a folder of parquet files, which are read and never copied."""

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
from surrogate.trace.events.read import trace_files
from surrogate.trace.events.tables import Trace


def own_settings(script: str) -> dict[str, Any]:
    """Return the content of the ``.toml`` with the script's own name: names, texts and figures."""
    return tomllib.loads(Path(script).with_suffix(".toml").read_text(encoding="utf-8"))


HOME = Path(__file__).resolve().parent
"""Folder of tables/, figures/ and README.md."""
DEFAULT_FOLDER = HOME / "data"
"""Folder of the public measurements that are part of the repository; ``data/README.md`` describes them."""

_NAMES = own_settings(__file__)
FILES: Mapping[str, Sequence[str]] = _NAMES["files"]
"""Source → file name or folder, and the kind of candidate list if the file does not name it."""
LABELS: Mapping[str, str] = _NAMES["labels"]
"""Source → its label in tables and sentences."""
TRACES: Mapping[str, str] = _NAMES["traces"]
"""Label of a profiler's trace → its source. An archive contains one trace per worker."""
RESNET50, VGG13, DLRM, RESNET, POWER = TRACES

PAPER_BATCH = 128
PAPER_MIN_US = 1000.0
FORWARD = {"direction": "fwd", "dtype": "fp32", "layout": "NCHW"}
"""The rows that SEER covers; every source has the most shapes there."""


@dataclass(frozen=True, slots=True)
class Sources:
    """The datasets of a run. ``folder`` holds the files of `FILES`. ``others`` replaces sources (name → file).

    Raises `InputError` for an unknown source name.
    """

    folder: Path = DEFAULT_FOLDER
    others: Mapping[str, Path] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.others:
            if name not in FILES:
                raise InputError(f"source {name!r} is unknown; give one of {', '.join(FILES)}{nearest(name, FILES)}")

    def path(self, name: str) -> Path:
        """Return the file of a source."""
        return Path(self.others.get(name, self.folder / FILES[name][0]))

    def missing(self, names: Sequence[str]) -> list[Path]:
        """Return the missing files among ``names``."""
        return [self.path(name) for name in names if not self.path(name).exists()]

    def dataset(self, name: str, where: Mapping[str, str] = FORWARD) -> Dataset:
        """Return a checked dataset, with only the rows whose columns have the values of ``where``.

        Raises `InputError` if the file is missing or damaged, or if no row is left.
        """
        stated = read_table(self.path(name))[1].get("candidates") if name in self.others else FILES[name][1]
        data = read_dataset(self.path(name), candidates=stated)
        frame = data.frame
        for column, value in where.items():
            frame = frame[frame[column] == value]
        if frame.empty:
            condition = ", ".join(f"{column}={value}" for column, value in where.items())
            raise InputError(f"{self.path(name)}: no row has {condition}; give a table with such rows")
        return data.with_frame(frame)

    def traces(self, label: str) -> list[Trace]:
        """Return the trace of that label, or those of all its workers. Raises `InputError` for a damaged file."""
        with trace_files([self.path(TRACES[label])]) as files:
            return [file.read() for file in files]

    def winners(self) -> Dataset:
        """Return the table of winners as dataset rows: one ok row per problem, of the fastest algorithm."""
        path = self.path("winners")
        frame = winner_rows(read_table(path)[0])
        return Dataset(normalise(frame, str(path)), "listed", path.name)


def winner_rows(frame: pd.DataFrame) -> pd.DataFrame:
    """Return dataset columns for a table that names winners by kernel: ``algorithm_guess`` and an integer version.

    ``…(implicit_convolve_sgemm)``, a kernel of two algorithms, counts as IMPLICIT_GEMM. Version 8902 is 8.9.2.
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
    """Return the rows of ``frame`` in the paper's domain: batch 128, over 1 ms, square, ungrouped.

    The refusals of these problems are included. Rows of 1 ms and less are dropped. So a problem with a best time of 1
    ms or less is incomplete and cannot be judged, as in the paper's set of picks.
    """
    square = (frame["h"] == frame["w"]) & (frame["r"] == frame["s"])
    in_domain = (frame["n"] == PAPER_BATCH) & square & (frame["groups"] == 1)
    slow = (frame["status"] != "ok") | (frame["time_us"] > PAPER_MIN_US)
    return frame[in_domain & slow].reset_index(drop=True)
