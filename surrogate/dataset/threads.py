"""The number of threads of a task, by its rows and by the CPUs that this process may use.

A thread without a free CPU delays the other threads. With other busy processes, two threads on 8,000 rows take several
times as long as one thread. So a task with few rows gets one thread, and parallel tasks share the CPUs.
"""

import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from multiprocessing import parent_process
from typing import TypeVar

from threadpoolctl import threadpool_limits

ROWS_PER_THREAD = 25_000
"""Rows per thread. A second thread begins at twice this number."""
SWITCH_S = 1e-4
"""Switch interval of Python's threads in `in_parallel`, in seconds.

A tree takes 5 ms outside Python. With Python's default interval of 5 ms it would then wait 5 ms to continue."""
MAX_WORKERS = 8
"""Largest number of parallel fits: each holds its own training rows."""

Item = TypeVar("Item")
Result = TypeVar("Result")
_thread_state = threading.local()
WARNINGS_LOCK = threading.Lock()
"""Lock for changes of the process's warning filters. Forests of scikit-learn empty and restore them at every tree."""


def usable_cores() -> int:
    """Return the CPUs that this process may use: the minimum of affinity, container quota and OMP_NUM_THREADS."""
    from joblib import cpu_count

    requested = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()  # "4,2" means 4 at the outer level
    cores = cpu_count()
    return min(cores, int(requested)) if requested.isdecimal() and int(requested) else cores


def threads_for(rows: int) -> int:
    """Return the number of threads for a task of ``rows`` rows, up to the calling thread's share of `usable_cores`.

    It is 1 for few rows, and in a worker process.
    """
    by_rows = rows // ROWS_PER_THREAD
    return 1 if by_rows < 2 else min(by_rows, _share())


def workers_for(tasks: int) -> int:
    """Return the number of tasks to run in parallel; 1 if the calling thread or its process is a worker itself."""
    return max(1, min(tasks, _share(), MAX_WORKERS))


def _share() -> int:
    """Return the number of CPUs that the calling thread may use."""
    return 1 if parent_process() is not None else getattr(_thread_state, "threads", None) or usable_cores()


@contextmanager
def limit_threads(threads: int | None = None) -> Iterator[None]:
    """Limit BLAS and OpenMP to one thread inside the block, because our products are small.

    `threads_for` then gives the calling thread at most ``threads`` (None: no change).
    """
    before = getattr(_thread_state, "threads", None)
    _thread_state.threads = threads or before
    try:
        with threadpool_limits(1):
            yield
    finally:
        _thread_state.threads = before


def in_parallel(work: Callable[[Item, threading.Event], Result], items: Sequence[Item], workers: int) -> list[Result]:
    """Return ``work`` of every item, in order. ``workers`` items run in parallel, each with its share of the CPUs.

    After an error or an interruption no further item begins. The event, the second argument of ``work``, is set, and
    the running items are awaited.
    """
    stopped = threading.Event()
    with limit_threads():
        if workers == 1:
            return [work(item, stopped) for item in items]
        threads = max(1, _share() // workers)
        with _switching(), ThreadPoolExecutor(workers, initializer=_begin_worker, initargs=(threads,)) as pool:
            futures = [pool.submit(work, item, stopped) for item in items]
            try:
                wait(futures, return_when=FIRST_EXCEPTION)
                return [future.result() for future in futures]
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)  # first, so that no stopped item makes room for another
                stopped.set()
                raise


@contextmanager
def _switching() -> Iterator[None]:
    """Set the switch interval of threads to `SWITCH_S` inside the block."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(before, SWITCH_S))
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def _begin_worker(threads: int) -> None:
    """Set a new thread's share of the CPUs. OpenMP limits each calling thread, BLAS the whole process."""
    _thread_state.threads = threads
    threadpool_limits(1, user_api="openmp")
