"""The CPU's datasheet is parsed from Linux's files, and one test measures this machine."""

import json
from pathlib import Path

from surrogate.collect import cpu


def test_measure_datasheet_measures_this_machine() -> None:
    datasheet = cpu.measure_datasheet()
    assert datasheet["gemm_gflops"] > 0
    assert datasheet["copy_gbs"] > 0
    assert datasheet["name"]
    assert datasheet["threads_used"] >= 1
    assert json.loads(json.dumps(datasheet)) == datasheet


def test_cpu_name_reads_the_first_model_name(tmp_path: Path) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text("processor\t: 0\nmodel\t\t: 2\nmodel name\t: Some CPU @ 2.00GHz\nprocessor : 1\nmodel name : x\n")
    assert cpu.cpu_name(file) == "Some CPU @ 2.00GHz"
    assert cpu.cpu_name(tmp_path / "missing")


def test_last_level_cache_bytes_reads_the_highest_level(tmp_path: Path) -> None:
    for index, level, size in ((0, "1", "32K"), (1, "3", "16384K"), (2, "2", "1024K"), (3, "bad", "?")):
        folder = tmp_path / f"index{index}"
        folder.mkdir()
        (folder / "level").write_text(level + "\n")
        (folder / "size").write_text(size + "\n")
    (tmp_path / "index9").mkdir()
    assert cpu.last_level_cache_bytes(tmp_path) == 16 * 2**20
    assert cpu.last_level_cache_bytes(tmp_path / "missing") == 0


def test_blas_has_one_thread_unless_the_environment_sets_more(monkeypatch):
    from threadpoolctl import threadpool_info, threadpool_limits

    def blas_threads() -> set[int]:
        return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}

    for name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    with threadpool_limits(2, user_api="blas"):
        monkeypatch.setenv("OPENBLAS_NUM_THREADS", "2")
        cpu.limit_blas_threads()
        assert blas_threads() == {2}
        monkeypatch.delenv("OPENBLAS_NUM_THREADS")
        cpu.limit_blas_threads()
        assert blas_threads() == {1}
