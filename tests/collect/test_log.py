"""`RunLog` appends to a log with the same header, repairs a truncated one, locks it, and refuses other files."""

import errno
import gzip
import json
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from surrogate.collect import log
from surrogate.collect.device import DeviceInfo
from surrogate.collect.log import Header, RunLog
from surrogate.features.errors import InputError
from tests.known import cases

HEADER = Header(DeviceInfo("GPU", "cudnn", "9.1.0"), "a" * 64, (1, 2), "test", 3, {"repeats": 5}, 12.5)
RECORD = {"kind": "done", "problem": "p #0", "find": [], "conditions": {}}


def begin(path, *records):
    with RunLog(path, HEADER) as run:
        for record in records:
            run.append(record)


def test_a_log_reads_back(refused, tmp_path):
    path = tmp_path / "run.jsonl"
    begin(path, RECORD, RECORD)
    contents = log.read_log(path)
    assert (contents.header, contents.records) == (HEADER, (RECORD, RECORD))
    assert contents.complete_bytes == path.stat().st_size
    packed = tmp_path / "run.jsonl.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert log.read_log(packed).records == (RECORD, RECORD)
    packed.write_bytes(packed.read_bytes()[:-9])
    with refused("archive is damaged"):
        log.read_log(packed)


def test_reopening_a_log_appends_and_keeps_the_first_header(tmp_path):
    path = tmp_path / "run.jsonl"
    begin(path, RECORD)
    with RunLog(path, replace(HEADER, created_s=99.0)) as run:
        assert run.records == (RECORD,)
        assert run.header.created_s == 12.5
        run.append(RECORD)
    assert len(log.read_log(path).records) == 2


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(st.data())
def test_a_log_truncated_at_any_byte_is_continued(tmp_path, data):
    path = tmp_path / "cut.jsonl"
    path.unlink(missing_ok=True)
    begin(path, RECORD, RECORD, RECORD)
    complete = path.read_bytes()
    cut = data.draw(st.integers(0, len(complete)))
    path.write_bytes(complete[:cut])
    lines = complete[:cut].count(b"\n")
    with RunLog(path, HEADER) as run:
        assert len(run.records) == max(lines - 1, 0)
        for _ in range(3 - len(run.records)):
            run.append(RECORD)
    assert path.read_bytes() == complete


@cases(__file__)
def test_a_log_of_another_run_is_refused_and_unchanged(tmp_path, device, change, word):
    path = tmp_path / "run.jsonl"
    begin(path, RECORD)
    before = path.read_bytes()
    with pytest.raises(InputError, match=word):
        RunLog(path, replace(HEADER, **change, **({"device": DeviceInfo(*device)} if device else {})))
    assert path.read_bytes() == before


def test_an_open_log_is_locked(refused, tmp_path):
    path = tmp_path / "run.jsonl"
    with RunLog(path, HEADER), refused("another run"):
        RunLog(path, HEADER)
    RunLog(path, HEADER).close()


@pytest.mark.parametrize("content", [b"hello", b"hello\n", b"PAR1\x00\xff", b'{"kind": "other"}\n', b"[1]\n"])
def test_a_foreign_file_is_refused_and_unchanged(refused, tmp_path, content):
    path = tmp_path / "notes"
    path.write_bytes(content)
    with refused("notes"):
        RunLog(path, HEADER)
    assert path.read_bytes() == content


def test_unreadable_and_unwritable_logs_are_refused(refused, tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_text(json.dumps({**HEADER.to_dict(), "schema": 99}) + "\n")
    with refused("schema 99", "upgrade"):
        log.read_log(path)
    path.write_text(json.dumps({"kind": log.HEADER, "schema": 1}) + "\n")
    with refused("damaged"):
        log.read_log(path)
    with refused("no such run"):
        log.read_log(tmp_path / "none")
    for unwritable in (tmp_path / "no" / "folder" / "run.jsonl", tmp_path):
        with refused("cannot be written"):
            RunLog(unwritable, HEADER)


class NearlyFullFile:
    """A file that accepts ``free_bytes`` bytes, at most 100 a call, and then raises that the disk is full."""

    def __init__(self, file, free_bytes):
        self.file, self.free_bytes = file, free_bytes

    def write(self, data):
        count = min(len(data), self.free_bytes, 100)
        if not count:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.free_bytes -= count
        return self.file.write(data[:count])

    def __getattr__(self, name):
        return getattr(self.file, name)


@pytest.mark.parametrize("free_bytes", [0, 1, 99, 250])
def test_a_full_disk_leaves_complete_records(tmp_path, free_bytes):
    """A raw write may store a part of a line, which the log must remove before it appends the next one."""
    path = tmp_path / "run.jsonl"
    with RunLog(path, HEADER) as run:
        run.append(RECORD)
        before = path.read_bytes()
        run._file = NearlyFullFile(run._file, free_bytes)
        with pytest.raises(OSError, match="No space left"):
            run.append({**RECORD, "find": ["x" * 400]})
        assert path.read_bytes() == before
        run._file.free_bytes = 10_000
        run.append({**RECORD, "find": ["y" * 400]})
    assert [record["find"] for record in log.read_log(path).records] == [[], ["y" * 400]]
