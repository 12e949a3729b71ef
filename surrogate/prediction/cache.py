"""Measured times of algorithms, kept between runs in SQLite: what was measured once beats every prediction.

Keyed by the device's name, its library and version, and the problem with its settings. Several processes may write.
"""

import logging
import os
import sqlite3
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from surrogate.features.families import AnyProblem
from surrogate.features.gpu import canonical
from surrogate.prediction.results import setting_line

if TYPE_CHECKING:
    from surrogate.collect.device import DeviceInfo, Measurement

ENVIRONMENT_VARIABLE = "SEER_CACHE"
FILE_NAME = "tuning.sqlite"
TIMEOUT_S = 30.0
"""How long a writer waits for the others."""
_CREATE = """CREATE TABLE IF NOT EXISTS tunings (
    gpu TEXT, library TEXT, library_version TEXT, problem TEXT, algorithm TEXT,
    status TEXT NOT NULL, time_us REAL, workspace_bytes INTEGER, deterministic INTEGER, reason TEXT NOT NULL,
    PRIMARY KEY (gpu, library, library_version, problem, algorithm)) WITHOUT ROWID"""
_SELECT = """SELECT library_version, algorithm, status, time_us, workspace_bytes, deterministic, reason FROM tunings
    WHERE gpu = ? AND library = ? AND problem = ?"""
_log = logging.getLogger("surrogate")


@dataclass(frozen=True, slots=True)
class Tuning:
    """What one measurement gave: ``time_us`` is the median of the repeats, None where the algorithm did not run."""

    status: str
    time_us: float | None = None
    workspace_bytes: int | None = None
    deterministic: bool | None = None
    reason: str = ""

    @classmethod
    def of(cls, measured: "Measurement") -> Self:
        """The part of a measurement that is kept."""
        from surrogate.collect.device import summarise

        time_us = summarise(measured.times_us).median_us if measured.times_us else None
        workspace_bytes, deterministic = measured.workspace_bytes, measured.deterministic
        return cls(measured.status, time_us, workspace_bytes, deterministic, reason=measured.reason)


class TuningCache:
    """Measurements by device, problem and algorithm; ``path`` None: in memory.

    Where the file cannot be used, one warning says so and the measurements stay in memory.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = None if path is None else Path(path)
        try:
            if self.path is not None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            self._open(self.path or ":memory:")
        except (OSError, sqlite3.Error) as error:
            self._give_up(error)

    def _open(self, path: str | Path) -> None:
        self._connection = sqlite3.connect(path, timeout=TIMEOUT_S, isolation_level=None, check_same_thread=False)
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute("PRAGMA synchronous=NORMAL")
        self._connection.execute(_CREATE)

    def _give_up(self, error: Exception) -> None:
        _log.warning(
            "seer: %s: measurements are not kept (%s); %s names another file for them",
            self.path, error, ENVIRONMENT_VARIABLE,
        )  # fmt: skip
        self._open(":memory:")

    def get(self, device: "DeviceInfo", problem: AnyProblem) -> dict[str, Tuning]:
        """Algorithm → what is known of it on this device and problem; what other processes added counts."""
        by_version = self.by_version(device.gpu, device.library, problem)
        return dict(by_version.get(device.library_version, {}))

    def by_version(self, gpu: str, library: str, problem: AnyProblem) -> Mapping[str, dict[str, Tuning]]:
        """Library version → algorithm → what is known of it on a GPU (any name) and problem."""
        tunings: dict[str, dict[str, Tuning]] = {}
        try:
            rows = self._connection.execute(_SELECT, (canonical(gpu), library, setting_line(problem)))
            for version, algorithm, status, time_us, workspace, deterministic, reason in rows:
                same_bits = None if deterministic is None else bool(deterministic)
                tunings.setdefault(version, {})[algorithm] = Tuning(
                    status, time_us, workspace, same_bits, reason=reason
                )
        except sqlite3.Error as error:
            self._give_up(error)
        return tunings

    def put(self, device: "DeviceInfo", problem: AnyProblem, algorithm: str, tuning: Tuning) -> None:
        """Keep one measurement; the latest of a key counts."""
        where = canonical(device.gpu), device.library, device.library_version
        row = (*where, setting_line(problem), algorithm, *astuple(tuning))
        statement = f"INSERT OR REPLACE INTO tunings VALUES ({', '.join('?' * len(row))})"
        try:
            self._connection.execute(statement, row)
        except sqlite3.Error as error:
            self._give_up(error)
            self._connection.execute(statement, row)


def default_path() -> Path:
    """The user's cache: the file that ``SEER_CACHE`` names (or one in the folder that it names), else one in
    ``XDG_CACHE_HOME`` if that is absolute, else in ``~/.cache`` (XDG base directory specification)."""
    if named := os.environ.get(ENVIRONMENT_VARIABLE):
        return Path(named) / FILE_NAME if Path(named).is_dir() else Path(named)
    shared = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(shared) if shared.startswith("/") else Path("~/.cache").expanduser()
    return base / "seer-surrogate" / FILE_NAME
