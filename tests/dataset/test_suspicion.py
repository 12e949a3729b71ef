"""Times in another unit are suspected; real ones are not."""

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from surrogate.cli import main
from surrogate.dataset.normalise import normalise
from surrogate.dataset.store import read_dataset
from surrogate.dataset.suspicion import suspicions
from surrogate.formats import FORMATS

Table = Callable[..., pd.DataFrame]


def physical(table: Table) -> pd.DataFrame:
    """The invented table at a few times the roofline of its GPUs."""
    frame = table(12)
    return frame.assign(time_us=frame["time_us"] * 3)


@pytest.mark.parametrize(("factor", "unit"), [(1e-3, "ms"), (1e-6, "s"), (1e3, "ns")])
def test_another_unit_is_named_for_each_gpu(table: Table, factor: float, unit: str) -> None:
    frame = physical(table)
    assert suspicions(frame) == []
    said = suspicions(frame.assign(time_us=frame["time_us"] * factor))
    assert len(said) == 2 and all(line.endswith(f"are these {unit}?") for line in said)


def test_one_gpu_in_ms_does_not_hide_behind_the_others(table: Table) -> None:
    frame = physical(table)
    slow = frame["gpu"] == "Tesla T4"
    said = suspicions(frame.assign(time_us=frame["time_us"].where(~slow, frame["time_us"] / 1000)))
    assert len(said) == 1 and said[0].startswith("Tesla T4")


def test_unknown_gpus_and_tables_without_times_are_left_alone(table: Table) -> None:
    frame = physical(table)
    assert suspicions(frame.assign(gpu="nobody's", time_us=1e-9)) == []
    assert suspicions(frame.assign(status="failed", time_us=float("nan"))) == []


def test_measured_tables_are_not_suspected(shared_data: Path) -> None:
    data = read_dataset(shared_data / "cudnn_conv_partial_networks.parquet")
    assert suspicions(data.frame, data.devices) == []


def test_problems_so_small_that_launches_are_all_they_take_are_not_suspected(table: Table) -> None:
    """16 µs where the roofline says 0.01: three thousand times as much, and right."""
    small = table(12).assign(n=1, c=4, h=4, w=4, k=4, groups=1, time_us=16.0)
    assert suspicions(small) == []
    said = suspicions(small.assign(time_us=16e3))
    assert len(said) == 2 and all(line.endswith("are these ns?") for line in said)


def test_raw_find_dbs_are_not_suspected_and_in_another_unit_they_are(shared_data: Path) -> None:
    for path in sorted((shared_data / "raw").glob("miopen_*.txt")):
        frame = normalise(FORMATS["miopen"].read([path]).rows, path.name)
        assert suspicions(frame) == []
        for unit, factor in (("ms", 1e-3), ("s", 1e-6), ("ns", 1e3)):
            (said,) = suspicions(frame.assign(time_us=frame["time_us"] * factor))
            assert said.endswith(f"are these {unit}?")


@pytest.mark.parametrize("command", [("data", "check"), ("data", "merge", "-o", "out.parquet")])
def test_commands_warn_and_go_on(
    table: Table,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: tuple[str, ...],
) -> None:
    frame = physical(table)
    frame.assign(time_us=frame["time_us"] / 1000).to_parquet(tmp_path / "ms.parquet")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["seer", *command, "ms.parquet"])
    with pytest.raises(SystemExit) as stop:
        main()
    captured = capsys.readouterr()
    assert not stop.value.code and " rows" in captured.out
    assert "warning: ms.parquet: Tesla T4" in captured.err
