"""The tuning cache: what is put is got, whoever kills, tears, fills or forbids; and where it lies."""

import json
import logging
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surrogate.collect.device import DeviceInfo, Measurement
from surrogate.features.conv import Conv
from surrogate.features.errors import InputError
from surrogate.prediction import cache as tuning_cache
from surrogate.prediction.cache import KIND, Tuning, TuningCache, cache_folder, default_cache, device_key
from surrogate.prediction.checked_lines import CheckedLines, decode, encode

T4 = DeviceInfo("Tesla T4", "cudnn", "9.1.0")
CONV = Conv(n=1, c=8, h=8, k=8, r=3)
WRITER = """
import sys
from pathlib import Path
from surrogate.features.conv import Conv
from surrogate.collect.device import DeviceInfo
from surrogate.prediction.cache import Tuning, TuningCache

path, writer, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
cache = TuningCache(path, max_bytes=int(sys.argv[4]))
print("ready", flush=True)
device = DeviceInfo("Tesla T4", "cudnn", "9.1.0")
for i in range(count):
    cache.put(device, Conv(n=i + 1, c=8, h=8, k=8, r=3), f"A{writer}", Tuning("ok", i))
"""


@pytest.fixture(autouse=True)
def forget_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning_cache, "_warned", set())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache é" / "tuning.jsonl"


def writer(path: Path, number: int, count: int, max_bytes: int = 1 << 40) -> "subprocess.Popen[str]":
    words = [sys.executable, "-c", WRITER, str(path), str(number), str(count), str(max_bytes)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


def found(path: Path) -> Iterator[tuple[str, str]]:
    """(problem, algorithm) of every whole line."""
    for record in CheckedLines(path, KIND).read_new():
        yield record["problem"], record["algorithm"]


def test_what_is_put_is_got_by_another(path: Path) -> None:
    """Times, refusals, workspace and determinism; the latest counts; other problems and devices stay apart."""
    first, second = TuningCache(path), TuningCache(path)
    first.put(T4, CONV, "GEMM", Tuning("ok", 3.5, 64, True))
    first.put(T4, CONV, "FFT", Tuning("not_supported", reason="filter"))
    assert second.get(T4, CONV) == {
        "GEMM": Tuning("ok", 3.5, 64, True), "FFT": Tuning("not_supported", reason="filter")
    }  # fmt: skip
    second.put(T4, CONV, "GEMM", Tuning("ok", 2.5))
    assert first.get(T4, CONV)["GEMM"].time_us == 2.5
    assert first.get(DeviceInfo("Tesla T4", "cudnn", "9.2.0"), CONV) == {}
    assert first.get(T4, CONV.with_batch(2)) == {}
    assert first.get(T4, Conv(n=1, c=8, h=8, k=8, r=3, math="tensor_op")) == {}
    assert set(TuningCache(path).get(DeviceInfo("t4", "cudnn", "9.1.0"), CONV)) == {"GEMM", "FFT"}  # an alias


def test_a_measurement_becomes_its_median() -> None:
    measured = Measurement("ok", "", (9.0, 1.0, 2.0), (9.0, 1.0, 2.0), "events", 64, False)
    assert Tuning.of(measured) == Tuning("ok", 2.0, 64, False)
    assert not Tuning.of(Measurement("failed", "fault")).keeps


VALUES = st.none() | st.integers() | st.text() | st.floats(allow_nan=False, allow_infinity=False)


@given(st.dictionaries(st.text(), VALUES, max_size=5), st.integers(0, 10_000), st.integers(0, 255))
def test_a_line_is_whole_or_nothing(record: dict, place: int, byte: int) -> None:
    """Any change of any byte, and any cut, is noticed; the whole line comes back as it was."""
    line = encode(record)[:-1]
    assert decode(line) == record
    place %= len(line)
    changed = bytearray(line)
    changed[place] = byte
    if bytes(changed) != line and bytes(changed).lower() != line.lower():
        assert decode(bytes(changed)) is None
    assert decode(line[:place]) is None


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_torn_last_line_is_left_out_and_repaired(path: Path, cut: int) -> None:
    """Wherever the kill struck: earlier lines stay, the next write starts a line of its own."""
    cache = TuningCache(path)
    cache.put(T4, CONV, "GEMM", Tuning("ok", 1.0))
    cache.put(T4, CONV, "FFT", Tuning("ok", 2.0))
    path.write_bytes(path.read_bytes()[:-cut])
    again = TuningCache(path)
    assert set(again.get(T4, CONV)) == {"GEMM"}
    again.put(T4, CONV, "WINOGRAD", Tuning("ok", 3.0))
    whole = {"FFT"} if cut == 1 else set()  # only the line's end was missing
    assert set(TuningCache(path).get(T4, CONV)) == {"GEMM", "WINOGRAD"} | whole


@pytest.mark.parametrize("length", [0, 1, 20, len(KIND.line()) - 1, len(KIND.line())])
def test_a_kill_within_the_header_is_repaired(path: Path, length: int) -> None:
    path.parent.mkdir()
    path.write_bytes(KIND.line()[:length])
    cache = TuningCache(path)
    assert cache.get(T4, CONV) == {}
    cache.put(T4, CONV, "GEMM", Tuning("ok", 1.0))
    assert path.read_bytes().startswith(KIND.line())
    assert len(TuningCache(path)) == 1


def test_a_changed_byte_costs_its_line_alone(path: Path) -> None:
    cache = TuningCache(path)
    for batch in (1, 2, 3):
        cache.put(T4, CONV.with_batch(batch), "GEMM", Tuning("ok", 1.0))
    lines = path.read_bytes().split(b"\n")
    lines[2] = lines[2].replace(b"1.0", b"9.0")
    path.write_bytes(b"\n".join(lines))
    assert len(TuningCache(path)) == 2


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"my notes\n", "something else"),
        (b"x", "something else"),
        (encode({"kind": KIND.kind, "schema": KIND.schema + 1}), "upgrade"),
        (encode({"kind": "another", "schema": 1}), "something else"),
    ],
)
def test_foreign_and_newer_files_are_refused_and_kept(path: Path, content: bytes, said: str) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    for use in (
        lambda: TuningCache(path).get(T4, CONV),
        lambda: TuningCache(path).put(T4, CONV, "A", Tuning("ok", 1.0)),
    ):
        with pytest.raises(InputError, match=said):
            use()
    reader = TuningCache(path)
    for _ in range(2):  # and refused again, not taken for an empty one
        with pytest.raises(InputError, match=said):
            reader.get(T4, CONV)
    assert path.read_bytes() == content


def test_the_size_is_bounded_and_the_latest_stay(path: Path) -> None:
    cache = TuningCache(path, max_bytes=4000)
    for batch in range(1, 101):
        cache.put(T4, CONV.with_batch(batch), "GEMM", Tuning("ok", float(batch)))
        assert path.stat().st_size < 4200
    other = TuningCache(path)
    assert other.get(T4, CONV.with_batch(100))["GEMM"].time_us == 100.0
    assert other.get(T4, CONV.with_batch(1)) == {}
    assert [p.name for p in path.parent.iterdir()] == [path.name]  # nothing temporary stays


def test_compaction_keeps_one_line_a_key(path: Path) -> None:
    cache = TuningCache(path, max_bytes=2000)
    for time_us in range(200):
        cache.put(T4, CONV, "GEMM", Tuning("ok", float(time_us)))
    assert len(list(found(path))) < 15
    assert TuningCache(path).get(T4, CONV)["GEMM"].time_us == 199.0


def test_eight_writers_lose_nothing(path: Path) -> None:
    """10,000 writes of eight processes at once."""
    children = [writer(path, number, 1250) for number in range(8)]
    assert [child.wait(timeout=120) for child in children] == [0] * 8
    for child in children:
        assert child.stdout is not None
        child.stdout.close()
    assert len(set(found(path))) == 10_000
    assert path.read_bytes().count(b"\n") == 10_001


def test_writers_lose_nothing_while_others_compact(path: Path) -> None:
    """Each of three writers' latest line survives the compactions of all."""
    children = [writer(path, number, 200, max_bytes=20_000) for number in range(3)]
    for child in children:
        child.communicate(timeout=120)
        assert child.returncode == 0
    assert path.stat().st_size < 20_300
    latest = {algorithm for problem, algorithm in found(path) if problem.startswith("n200c")}
    assert latest  # whoever wrote last of all stands
    kept = list(found(path))
    assert len(kept) == len(set(kept))


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL on Windows")
def test_killed_writers_leave_a_good_file(path: Path) -> None:
    """Killed at random moments; every write but the last of each is there, and the file goes on."""
    moments = random.Random(5)
    for number in range(6):
        child = writer(path, number, 100_000)
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        time.sleep(moments.uniform(0.02, 0.15))
        child.send_signal(signal.SIGKILL)
        child.communicate(timeout=60)
        cache = TuningCache(path)
        cache.put(T4, CONV, f"after {number}", Tuning("ok", 1.0))
    counts: dict[str, list[int]] = {}
    for problem, algorithm in found(path):
        counts.setdefault(algorithm, []).append(int(problem[1 : problem.index("c")]))
    for number in range(6):
        assert f"after {number}" in counts
        mine = counts.get(f"A{number}", [])
        assert mine == list(range(1, len(mine) + 1))


def test_no_place_to_write_is_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A file in the folder's place (as root, permissions forbid nothing): one line, and the times stay in memory."""
    (tmp_path / "file").write_text("")
    cache = TuningCache(tmp_path / "file" / "tuning.jsonl")
    with caplog.at_level(logging.WARNING, "surrogate"):
        for batch in (1, 2):
            cache.put(T4, CONV.with_batch(batch), "GEMM", Tuning("ok", 1.0))
            assert cache.get(T4, CONV.with_batch(batch))["GEMM"].time_us == 1.0
    assert len(caplog.records) == 1
    assert "SEER_CACHE" in caplog.records[0].getMessage()
    assert "\n" not in caplog.records[0].getMessage()


@pytest.mark.parametrize("written", [0, 10])
def test_a_full_disk_is_one_warning_and_leaves_the_file(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, written: int
) -> None:
    """Also where part of the line went through."""
    TuningCache(path).put(T4, CONV, "GEMM", Tuning("ok", 1.0))
    before, write = path.read_bytes(), os.write

    def full(descriptor: int, content: bytes) -> int:
        if written:
            return write(descriptor, content[:written])
        raise OSError(28, "No space left on device")

    cache = TuningCache(path)
    with monkeypatch.context() as patched, caplog.at_level(logging.WARNING, "surrogate"):
        patched.setattr(os, "write", full)
        cache.put(T4, CONV, "FFT", Tuning("ok", 2.0))
        cache.put(T4, CONV, "WINOGRAD", Tuning("ok", 3.0))
    assert path.read_bytes() == before
    assert set(cache.get(T4, CONV)) == {"FFT", "WINOGRAD"}
    assert len(caplog.records) == 1


def test_a_compaction_that_fails_leaves_the_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = TuningCache(path, max_bytes=600)
    cache.put(T4, CONV, "GEMM", Tuning("ok", 1.0))

    def refuse(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("surrogate.prediction.checked_lines.atomic_path", refuse)
    for batch in range(1, 10):
        cache.put(T4, CONV.with_batch(batch), "GEMM", Tuning("ok", 1.0))
    assert 600 < path.stat().st_size < 900
    assert len(cache) == 9


def test_where_the_cache_lies() -> None:
    """`SEER_CACHE`, XDG, each platform's own; nothing without a home; a relative XDG folder does not count."""
    name = "seer-surrogate"
    assert cache_folder({"SEER_CACHE": "/x", "HOME": "/h"}, "linux") == Path("/x")
    assert cache_folder({"XDG_CACHE_HOME": "/c", "HOME": "/h"}, "linux") == Path("/c") / name
    assert cache_folder({"XDG_CACHE_HOME": "c", "HOME": "/h"}, "linux") == Path("/h/.cache") / name
    assert cache_folder({"HOME": "/h"}, "darwin") == Path("/h/Library/Caches") / name
    assert cache_folder({"LOCALAPPDATA": "/l"}, "win32") == Path("/l") / name
    assert cache_folder({"USERPROFILE": "/u"}, "win32") == Path("/u/AppData/Local") / name
    assert cache_folder({}, "linux") is None


def test_no_home_is_one_warning(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("HOME", "SEER_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    with caplog.at_level(logging.WARNING, "surrogate"):
        assert default_cache().path is None
        assert default_cache().path is None
    assert len(caplog.records) == 1


def test_a_later_release_s_fields_are_ignored(path: Path) -> None:
    lines = CheckedLines(path, KIND)
    lines.append(
        {"device": device_key(T4), "problem": "n1c8h8w8k8r3s3p0u1 fp32 fma NCHW fwd", "algorithm": "GEMM",
         "tuning": {"status": "ok", "time_us": 4.0, "energy_mj": 1}}
    )  # fmt: skip
    lines.append({"remark": "no measurement"})
    assert TuningCache(path).get(T4, CONV) == {"GEMM": Tuning("ok", 4.0)}
    assert json.loads(path.read_text().splitlines()[1][9:])["tuning"]["energy_mj"] == 1
