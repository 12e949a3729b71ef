"""Configurations of the CPU kernel, compiled and timed on two tiny shapes."""

from pathlib import Path

import numpy as np
import pytest

from experiments.cpu_kernel import KERNEL, RAGGED, Bench, Shape, configurations, measure, noise_of
from surrogate.dataset.tables import read_table
from surrogate.features.description import description_of


def require_kernel_tuner() -> None:
    """Skip the test if Kernel Tuner, OpenCL or PoCL is not installed."""
    for name in ("kernel_tuner", "pyopencl", "pocl_binary_distribution"):
        pytest.importorskip(name)


def test_configurations_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last configuration does not compile."""
    require_kernel_tuner()
    for name in ("POCL_CACHE_DIR", "POCL_MAX_PTHREAD_COUNT"):
        monkeypatch.setenv(name, "")  # restores the variable at the end
    valid = [c for c in configurations(KERNEL) if c["item_n"] == c["tile_n"] == 16 and c["tile_m"] == 8]
    path = tmp_path / "cpu.parquet"
    shapes, space = [Shape(16, 16, 16), Shape(33, 50, 21)], [valid[0], valid[-1], {**valid[0], "vector": 5}]
    measure(path, shapes, space, passes=2)
    frame, metadata = read_table(path)
    assert frame["status"].tolist() == ["ok", "ok", "failed"] * 2 and frame["repeats"].tolist() == [2, 2, 0] * 2
    assert "error:" in frame["reason"][2] and frame["time_us"].isna().tolist() == [False, False, True] * 2
    ok = frame[frame["status"] == "ok"]
    assert ((ok["time_us_min"] > 0) & (ok["time_us_min"] <= ok["time_us"]) & (ok["time_us"] <= ok["time_us_max"])).all()
    assert description_of(metadata["kernel"], "metadata") == KERNEL and metadata["noise"] >= 0


def test_a_wrong_result_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_kernel_tuner()
    monkeypatch.setenv("POCL_CACHE_DIR", str(tmp_path))
    bench = Bench(configurations(KERNEL)[:1])
    bench.allocate(RAGGED)
    a, *_ = bench.arguments[RAGGED[1]]
    a[-1, -1] += 0.1  # the operand of NumPy now differs from that of the device
    bench.compile(0)
    assert "verification failed" in bench.failures[0]


def test_the_noise_is_the_deviation_of_two_equal_times() -> None:
    """The times are medians of nine passes, and one in a hundred is disturbed."""
    random = np.random.default_rng(0)
    times = 100 * np.exp(random.normal(0, 0.02, (9, 40, 200)))
    medians = np.median(times, axis=0).ravel()
    times[:, :, ::100] *= 3
    expected = np.sqrt(2) * np.std(np.log(medians))
    assert noise_of(times) == pytest.approx(expected, rel=0.15)
