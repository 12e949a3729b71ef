"""A pipe, a device, a name that is no UTF-8, in the place of every reader's file."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest

from tests.fuzz.cases import run, write
from tests.fuzz.readers import READERS, Reader

FILES = [reader for reader in READERS.values() if reader.quick]
PATIENCE_S = 20

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="named pipes and names of any bytes are Linux's"
)


@pytest.fixture(autouse=True)
def no_waiting() -> Iterator[None]:
    """A reader that waits for a pipe's writer fails."""

    def give_up(number: int, frame: FrameType | None) -> None:
        raise AssertionError("the reader waits")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(PATIENCE_S)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("reader", FILES, ids=lambda reader: reader.name)
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_pipes_and_devices_are_refused(reader: Reader, kind: str, tmp_path: Path) -> None:
    if reader.missing:
        pytest.skip(f"no package {reader.missing}")
    files = reader.seeds()[0]
    path = write(files, tmp_path, reader)
    first = tmp_path / next(iter(files))
    first.unlink()
    if kind == "pipe":
        os.mkfifo(first)
    else:
        first.symlink_to("/dev/zero")
    outcome = run(reader, path)
    assert outcome.verdict == "refused" and f"is a {kind}, no regular file" in outcome.text, outcome


@pytest.mark.parametrize(
    "name", ["dataset (parquet)", "streamed dataset (parquet)", "import miopen", "run log"]
)
def test_a_name_that_is_no_utf8_is_read(name: str, tmp_path: Path) -> None:
    reader = READERS[name]
    path = write(reader.seeds()[0], tmp_path, reader)
    odd = path.with_name(f"\udcff {path.name}")
    try:
        path.rename(odd)
    except OSError:
        pytest.skip("the file system takes UTF-8 only")
    outcome = run(reader, odd)
    assert outcome.verdict == "read", outcome
