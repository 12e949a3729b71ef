"""CPUs that a process may use, threads and workers for a task, and the time left."""

import builtins
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from surrogate.dataset.threads import in_parallel, limit_threads, threads_for, usable_cores, workers_for
from tests.known import known_answers

ANSWERS = known_answers(__file__)


Machine = Callable[..., None]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    """Return ``machine(cpus, affinity, groups, omp_threads)``, which imitates a machine and its control groups."""
    real_open, real_exists = builtins.open, os.path.exists

    def redirected(path: Any) -> Any:
        text = str(path)
        return text.replace("/sys/fs/cgroup", str(tmp_path)) if text.startswith("/sys/fs/cgroup") else path

    def make(cpus: int, affinity: int, groups: Mapping[str, str], omp_threads: str = "") -> None:
        for name, text in groups.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text)
        monkeypatch.setattr(os, "cpu_count", lambda: cpus)
        monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(affinity)), raising=False)
        monkeypatch.setattr(builtins, "open", lambda path, *rest, **how: real_open(redirected(path), *rest, **how))
        monkeypatch.setattr(os.path, "exists", lambda path: real_exists(redirected(path)))
        monkeypatch.setenv("OMP_NUM_THREADS", omp_threads)
        monkeypatch.delenv("LOKY_MAX_CPU_COUNT", raising=False)

    return make


@pytest.mark.parametrize(("cpus", "affinity", "groups", "omp_threads", "cores"), ANSWERS["limits"])
def test_usable_cores_is_the_minimum_of_all_limits(machine, cpus, affinity, groups, omp_threads, cores):
    machine(cpus, affinity, groups, omp_threads)
    assert usable_cores() == cores
    assert threads_for(10**9) == cores


@pytest.fixture
def eight_cpus(machine: Machine) -> None:
    """Imitate a machine with eight CPUs."""
    machine(8, 8, {})


@pytest.mark.usefixtures("eight_cpus")
def test_threads_for_grows_with_the_rows() -> None:
    rows = (0, 1, 8_000, 49_999, 50_000, 74_999, 75_000, 100_000, 1_000_000)
    assert list(map(threads_for, rows)) == [1, 1, 1, 1, 2, 2, 3, 4, 8]


@settings(max_examples=20)
@given(workers=st.integers(1, 12), cores=st.integers(1, 16), rows=st.integers(0, 10**7))
def test_nested_workers_never_exceed_the_cpus(workers: int, cores: int, rows: int) -> None:
    """All concurrent workers together use at most one thread per CPU, also if a worker starts workers."""

    def work(item: int, stopped: threading.Event) -> int:
        maximum = max(threads_for(rows), workers_for(100))
        return max(maximum, *in_parallel(lambda inner, _: threads_for(rows), [0, 1], workers_for(2)))

    with limit_threads(cores):
        at_once = min(workers, workers_for(100))
        used = in_parallel(work, range(4), at_once)
        assert max(used) * at_once <= max(cores, 1)
        assert threads_for(10**9) <= cores


def test_in_parallel_keeps_the_order_and_stops_after_an_error() -> None:
    assert in_parallel(lambda item, stopped: item * item, range(20), 3) == [n * n for n in range(20)]
    started = []

    def fail(item: int, stopped: threading.Event) -> None:
        started.append(item)
        if item == 0:
            raise ValueError("the first")
        assert stopped.wait(60)

    with pytest.raises(ValueError, match="the first"):
        in_parallel(fail, range(50), 2)
    assert len(started) <= 3
