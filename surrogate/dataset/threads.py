"""How many threads work gets: by its rows, and by the CPUs that this process may use.

Threads that find no free CPU let the others wait: two of them on 8,000 rows, beside other processes, take several times
as long as a single one. So few rows get one thread, and work that is done at the same time shares the CPUs.
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
"""Rows that are worth a thread, so that a second one begins at twice as many."""
SWITCH_S = 1e-4
"""Seconds after which a thread of `in_parallel` that runs Python lets another one run.

A tree takes 5 ms outside Python. With Python's own interval of 5 ms it would then wait as long to go on."""
MAX_WORKERS = 8
"""Fits at a time: each holds its own training rows."""

Item = TypeVar("Item")
Result = TypeVar("Result")
_here = threading.local()


def usable_cores() -> int:
    """CPUs that this process may keep busy: the least of its affinity, its container's quota and OMP_NUM_THREADS."""
    from joblib import cpu_count

    asked = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()  # "4,2": of the outermost level 4
    cores = cpu_count()
    return min(cores, int(asked)) if asked.isdecimal() and int(asked) else cores


def threads_for(rows: int) -> int:
    """Threads for work on so many rows: one for few of them, or in another process's worker; never more than the
    calling thread's share of `usable_cores`."""
    wanted = rows // ROWS_PER_THREAD
    return 1 if wanted < 2 else min(wanted, _share())


def workers_for(tasks: int) -> int:
    """Tasks to run at a time; one where the calling thread, or its process, is itself one of several workers."""
    return max(1, min(tasks, _share(), MAX_WORKERS))


def _share() -> int:
    """The CPUs that the calling thread may keep busy."""
    return 1 if parent_process() is not None else getattr(_here, "threads", None) or usable_cores()


@contextmanager
def limit_threads(threads: int | None = None) -> Iterator[None]:
    """Inside this, BLAS and OpenMP use one thread, as products of ours are small, and `threads_for` gives the calling
    thread ``threads`` at most (None: as before)."""
    before = getattr(_here, "threads", None)
    _here.threads = threads or before
    try:
        with threadpool_limits(1):
            yield
    finally:
        _here.threads = before


def in_parallel(work: Callable[[Item, threading.Event], Result], items: Sequence[Item], workers: int) -> list[Result]:
    """``work`` of every item, in order, ``workers`` of them at a time, each with its share of the CPUs.

    After an error or an interruption no further item begins; the event, which ``work`` gets too, is set, and what runs
    is waited for.
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
                stopped.set()
                pool.shutdown(cancel_futures=True)
                raise


@contextmanager
def _switching() -> Iterator[None]:
    """Inside this, threads take turns after `SWITCH_S`."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(before, SWITCH_S))
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def _begin_worker(threads: int) -> None:
    """The thread's share of the CPUs; OpenMP counts threads for each of its callers, BLAS for the whole process."""
    _here.threads = threads
    threadpool_limits(1, user_api="openmp")
