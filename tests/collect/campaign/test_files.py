"""Packing logs, and tables of bounded size."""

import numpy as np
import pandas as pd

from experiments.campaign.files import pack, unpack, write_parts


def test_a_log_is_packed_and_comes_back(tmp_path):
    log = tmp_path / "slice-1.jsonl"
    log.write_bytes(b"line\n" * 1000)
    packed = pack(log)
    first = packed.read_bytes()
    assert not log.exists() and len(first) < 200
    unpack(log)
    assert log.read_bytes() == b"line\n" * 1000
    assert pack(log).read_bytes() == first


def test_a_log_of_an_earlier_part_is_taken_where_there_is_none_here(tmp_path):
    (tmp_path / "a").mkdir()
    log = tmp_path / "a" / "slice-1.jsonl"
    log.write_bytes(b"old\n")
    pack(log)
    here = tmp_path / "slice-1.jsonl"
    unpack(here, tmp_path / "a")
    assert here.read_bytes() == b"old\n"
    here.write_bytes(b"newer\n")
    unpack(here, tmp_path / "a")
    assert here.read_bytes() == b"newer\n"


def test_a_slice_that_begins_has_nothing_to_unpack(tmp_path):
    unpack(tmp_path / "slice-1.jsonl", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_large_table_is_halved_until_each_part_is_small(tmp_path):
    frame = pd.DataFrame({"x": np.random.default_rng(0).random(20_000)})
    parts = write_parts(frame, tmp_path / "t.parquet", {"a": 1}, max_bytes=60_000)
    assert len(parts) == 4 and all(part.stat().st_size <= 60_000 for part in parts)
    assert not (tmp_path / "t.parquet").exists()
    back = pd.concat([pd.read_parquet(part) for part in parts], ignore_index=True)
    pd.testing.assert_frame_equal(back, frame)
