"""`CpuDevice` measures algorithms: repeats, inputs, statuses and limits."""

from dataclasses import dataclass

import numpy as np
import pytest

from surrogate.collect.cpu import CpuDevice
from surrogate.collect.device import RepeatPolicy
from surrogate.collect.merge import merge_runs
from surrogate.dataset.store import read_dataset, write_dataset
from surrogate.features.conv import Conv

CONV = Conv(n=2, c=4, h=9, k=6, r=3, groups=2)


@dataclass
class FakeAlgorithm:
    """An algorithm that advances the test's clock by ``seconds``."""

    name: str
    clock: list
    seconds: float = 0.001
    reason: str | None = None
    workspace: int = 64
    fails: bool = False
    seen: tuple = ()

    def unsupported_reason(self, conv):
        return self.reason

    def workspace_bytes(self, conv):
        return self.workspace

    def run(self, x, w, conv):
        if self.fails:
            raise MemoryError("no room")
        self.seen = (*self.seen, (x.shape, w.shape, x.dtype, float(x.std())))
        self.clock[0] += self.seconds
        return np.empty(0, np.float32)


def device(**fakes):
    clock = [0.0]
    algorithms = {name: FakeAlgorithm(name, clock, **options) for name, options in fakes.items()}
    datasheet = {"name": "Test CPU", "gemm_gflops": 50.0}
    return CpuDevice(algorithms, datasheet, clock=lambda: clock[0], max_workspace_bytes=1000), algorithms


@pytest.mark.parametrize(("seconds", "repeats"), [(0.001, 5), (0.05, 3), (0.5, 1)])
def test_longer_warm_ups_get_fewer_repeats(seconds, repeats):
    cpu, algorithms = device(GEMM={"seconds": seconds})
    result = cpu.measure(CONV, "GEMM", RepeatPolicy())
    assert result.times_us == pytest.approx([1e6 * seconds] * repeats)
    assert (result.status, result.timer) == ("ok", "wall")
    assert (result.workspace_bytes, result.deterministic) == (64, True)
    assert len(algorithms["GEMM"].seen) == repeats + 1


def test_algorithms_of_a_problem_share_random_normal_inputs():
    cpu, algorithms = device(GEMM={}, FFT={})
    for name in ("GEMM", "FFT"):
        cpu.measure(CONV, name, RepeatPolicy())
    first, second = algorithms["GEMM"].seen[0], algorithms["FFT"].seen[0]
    assert first == second
    assert first[:3] == ((2, 4, 9, 9), (6, 2, 3, 3), np.float32)
    assert 0.8 < first[3] < 1.2


def test_failed_measurements_have_a_status_and_a_reason(refused):
    cpu, _ = device(A={"reason": "needs stride 1"}, B={"workspace": 1001}, C={"fails": True})
    assert cpu.candidates(CONV) == ("A", "B", "C")
    results = {name: cpu.measure(CONV, name, RepeatPolicy()) for name in "ABC"}
    assert [results[name].status for name in "ABC"] == ["not_supported", "workspace_too_large", "failed"]
    assert results["A"].reason == "needs stride 1"
    assert results["B"].workspace_bytes == 1001
    assert results["C"].reason == "MemoryError: no room"
    with refused("known: A, B, C"):
        cpu.measure(CONV, "D", RepeatPolicy())


def test_the_device_reports_the_cpu_and_numpy():
    cpu, _ = device(A={})
    info = cpu.device_info()
    assert (info.gpu, info.library) == ("Test CPU", "reference")
    assert info.library_version == "numpy " + ".".join(np.__version__.split(".")[:2])
    assert info.properties["gemm_gflops"] == 50.0
    assert cpu.heuristic(CONV) == cpu.find(CONV) == ()


def test_the_cpu_measures_a_plan_into_a_dataset(make_plan, record, tmp_path):
    datasheet = {"name": "This CPU", "threads_used": 1, "gemm_gflops": 50.0, "copy_gbs": 10.0}
    datasheet["last_level_cache_bytes"] = 1 << 25
    merged = merge_runs([record(make_plan(4), CpuDevice(datasheet=datasheet))])
    path = tmp_path / "data.parquet"
    write_dataset(merged.frame, path, candidates=merged.candidates, metadata=merged.metadata)
    dataset = read_dataset(path)
    rows = dataset.frame
    assert len(rows) == 4 * 7 and dataset.candidates == "all"
    assert dataset.metadata["runs"][0]["device"]["gpu"] == "This CPU"
    ok = rows[rows.status == "ok"]
    assert {"IMPLICIT_GEMM", "GEMM", "WINOGRAD"} <= set(ok.algorithm)
    assert (ok.time_us > 0).all()
    assert set(rows.status[(rows.algorithm == "WINOGRAD") & (rows.r == 1)]) == {"not_supported"}
