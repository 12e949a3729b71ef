"""A bundle that is replaced while it is read: the reader gets the old one or the new one, never a complaint."""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from surrogate.bundle.bundle import INDEX, load, save
from surrogate.bundle.training import train
from surrogate.dataset.store import Dataset
from surrogate.features.errors import InputError

Table = Callable[..., pd.DataFrame]


def test_a_reader_sees_the_old_or_the_new(table: Table, tmp_path: Path) -> None:
    one = train(Dataset(table(4)), model="linear-terms")
    other = replace(one, widths=replace(one.widths, own_share=0.123))
    save(one, tmp_path / "b")
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            save(other, tmp_path / "b")
            save(one, tmp_path / "b")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        shares = [load(tmp_path / "b").widths.own_share for _ in range(40)]
    finally:
        stop.set()
        writer.join()
    assert set(shares) <= {one.widths.own_share, 0.123}
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_a_damaged_bundle_is_still_refused(table: Table, tmp_path: Path) -> None:
    save(train(Dataset(table(4)), model="linear-terms"), tmp_path / "b")
    (tmp_path / "b" / "widths.json").write_text("{}")
    with pytest.raises(InputError, match="differs from its hash in " + INDEX):
        load(tmp_path / "b")


def test_the_disk_is_full(table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old bundle stays, the user reads one line."""
    bundle = train(Dataset(table(4)), model="linear-terms")
    save(bundle, tmp_path / "b")

    def full(path: Path, content: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(InputError, match="No space left"):
        save(bundle, tmp_path / "b")
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == ["b"]
    load(tmp_path / "b")
