"""The tuning cache under fire: many writers, kills at random moments, compactions, and readers that never stop."""

import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from surrogate.collect.device import DeviceInfo
from surrogate.features.conv import Conv
from surrogate.prediction.cache import KIND, Tuning, TuningCache
from surrogate.prediction.checked_lines import CheckedLines

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL on Windows")
DEVICE = DeviceInfo("Tesla T4", "cudnn", "9.1.0")
PAUSE_S = 0.002
"""After each write, so that a writer lives long enough to be shot, however fast the machine is."""
IMPORTS = """
import sys, time
from pathlib import Path
from surrogate.features.conv import Conv
from surrogate.collect.device import DeviceInfo
from surrogate.prediction.cache import Tuning, TuningCache, tunings_of
device = DeviceInfo("Tesla T4", "cudnn", "9.1.0")
path = Path(sys.argv[1])
"""
WRITER = (
    IMPORTS
    + f"PAUSE_S = {PAUSE_S}"
    + """
name, start, stop, max_bytes = sys.argv[2], *map(int, sys.argv[3:])
cache = TuningCache(path, max_bytes=max_bytes)
for i in range(start, stop):
    cache.put(device, Conv(n=i, c=8, h=8, k=8, r=3), name, Tuning("ok", float(i)))
    print(i, flush=True)  # acknowledged
    time.sleep(PAUSE_S)
"""
)
READER = (
    IMPORTS
    + """
cache, seen, rounds = TuningCache(path), 0, 0
conv = Conv(n=1, c=8, h=8, k=8, r=3)
while not Path(sys.argv[2]).exists():
    now = len(cache)
    assert now >= seen, (now, seen)
    seen, rounds = now, rounds + 1
    tunings_of(path, conv)
assert cache.path is not None and cache._lines is not None, "the reader gave up"
print(rounds, len(cache))
"""
)


@dataclass
class Writer:
    """One process at a time under a name, started again where a kill stopped it."""

    path: Path
    name: str
    count: int
    max_bytes: int
    log: Path
    process: "subprocess.Popen[bytes]"
    kills: int = 0

    @classmethod
    def begin(cls, path: Path, name: str, count: int, max_bytes: int) -> "Writer":
        log = path.parent / f"{name}.log"
        return cls(path, name, count, max_bytes, log, cls._start(path, name, 1, count, max_bytes, log))

    @staticmethod
    def _start(path: Path, name: str, start: int, count: int, max_bytes: int, log: Path):
        words = [sys.executable, "-c", WRITER, path, name, start, count + 1, max_bytes]
        with log.open("ab") as out:
            return subprocess.Popen([str(word) for word in words], stdout=out)

    @property
    def acknowledged(self) -> int:
        """The last write that returned."""
        lines = self.log.read_bytes().split(b"\n")
        return int(lines[-2]) if len(lines) > 1 else 0

    def kill_and_go_on(self) -> None:
        """At whatever it was doing."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(timeout=60)
        self.kills += 1
        if self.acknowledged < self.count:
            self.process = self._start(
                self.path, self.name, self.acknowledged + 1, self.count, self.max_bytes, self.log
            )


def storm(folder: Path, writers: int, count: int, kills: int, max_bytes: int = 1 << 40) -> dict[str, int]:
    """``writers`` write ``count`` measurements each, ``kills`` of them are shot; two readers look on."""
    path, done, moments = folder / "tuning.jsonl", folder / "done", random.Random(7)
    readers = [
        subprocess.Popen([sys.executable, "-c", READER, path, done], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    fleet = [Writer.begin(path, f"A{number}", count, max_bytes) for number in range(writers)]
    shot = 0
    while any(one.process.poll() is None for one in fleet):
        time.sleep(moments.uniform(0.01, 0.1))
        victim = moments.choice(fleet)
        if shot < kills and 0 < victim.acknowledged < count:
            victim.kill_and_go_on()
            shot += 1
    done.touch()
    outcomes = [reader.communicate(timeout=60)[0].split() for reader in readers]
    assert [one.process.returncode for one in fleet] == [0] * writers
    assert [reader.returncode for reader in readers] == [0, 0]
    return {"shot": shot, "read": sum(int(rounds) for rounds, _ in outcomes)}


def every_write_is_there(path: Path, writers: int, count: int) -> None:
    found: dict[tuple[str, str], float] = {}
    for record in CheckedLines(path, KIND).read_new():
        found[record["problem"].split(" ")[0], record["algorithm"]] = record["tuning"]["time_us"]
    wanted = {
        (str(Conv(n=i, c=8, h=8, k=8, r=3)), f"A{number}"): float(i)
        for number in range(writers)
        for i in range(1, count + 1)
    }
    assert found == wanted
    assert len(TuningCache(path)) == writers * count


def test_kills_and_readers_in_small(tmp_path: Path) -> None:
    outcome = storm(tmp_path, 3, 150, 4)
    assert outcome["shot"] >= 1 and outcome["read"] >= 2
    every_write_is_there(tmp_path / "tuning.jsonl", 3, 150)


@pytest.mark.slow
def test_ten_thousand_writes_of_five_processes_forty_of_them_shot(tmp_path: Path) -> None:
    assert storm(tmp_path, 5, 2000, 40)["shot"] >= 30
    every_write_is_there(tmp_path / "tuning.jsonl", 5, 2000)


@pytest.mark.slow
def test_compactions_among_kills(tmp_path: Path) -> None:
    """A file that is compacted all the time: no reader errs, the size is bounded, the latest of all is there."""
    path = tmp_path / "tuning.jsonl"
    storm(tmp_path, 4, 500, 20, max_bytes=1 << 14)
    assert path.stat().st_size <= (1 << 14) + 512
    last = TuningCache(path).get(DEVICE, Conv(n=500, c=8, h=8, k=8, r=3))
    assert last and set(last.values()) == {Tuning("ok", 500.0)}
    temporary = [one for one in tmp_path.iterdir() if one.name.startswith(".")]
    assert len(temporary) <= 20  # at most one a kill


def test_a_reader_sees_through_a_replaced_file_with_the_same_inode(tmp_path: Path) -> None:
    """A file system gives a freed inode away again: size and inode alone do not tell that the file is another."""
    path = tmp_path / "tuning.jsonl"
    cache, reader = TuningCache(path), CheckedLines(path, KIND)
    cache.put(DEVICE, Conv(n=1, c=8, h=8, k=8, r=3), "GEMM", Tuning("ok", 1.0))
    before = reader.read_new()
    assert [one["algorithm"] for one in before] == ["GEMM"]
    other = TuningCache(tmp_path / "other.jsonl")
    for algorithm in ("FFT", "GEMM", "WINOGRAD"):
        other.put(DEVICE, Conv(n=1, c=8, h=8, k=8, r=3), algorithm, Tuning("ok", 2.0))
    with path.open("r+b") as file:  # other content under the old inode
        file.write((tmp_path / "other.jsonl").read_bytes())
    os.utime(path, ns=(0, 0))
    assert [one["algorithm"] for one in reader.read_new()] == ["FFT", "GEMM", "WINOGRAD"]
