"""The operators' loop: a run's log with ``operator`` records, which `surrogate.collect.merge` makes a table of."""

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from surrogate.collect.device import DeviceLostError, Measurement
from surrogate.collect.log import Header, RunLog
from surrogate.collect.operators.operator import Operator
from surrogate.collect.protocol import POLICY
from surrogate.collect.run import MAX_LOST_IN_A_ROW, TIME_UP, Budget, Outcome, Progress

KIND = "operator"


def collect_operators(
    operators: Sequence[Operator],
    device: Any,
    path: str | Path,
    *,
    minutes: float | None = None,
    progress: Progress | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Outcome:
    """Measure what the log at ``path`` does not hold yet, within ``minutes``; the same call goes on later.

    ``device`` (as `WorkerOperators`) has ``describe``, ``measure(operator, policy)`` and ``conditions``.
    A device that is lost costs one problem, which is noted as failed: the worker starts a new process. Too many
    losses in a row end the call.
    """
    budget = Budget(None if minutes is None else clock() + 60.0 * minutes, clock)
    lost_in_a_row, statuses = 0, Counter[str]()
    with RunLog(path, header_for(operators, device)) as run:
        done = {record["problem"] for record in run.records if record["kind"] == KIND}
        for operator in operators:
            if operator.key in done:
                continue
            if budget.spent():
                return Outcome(len(done), len(operators), statuses, TIME_UP)
            began_s, conditions = clock(), {}
            try:
                result = device.measure(operator, POLICY)
                conditions = dict(device.conditions())
                lost_in_a_row = 0
                budget.note(began_s)
            except DeviceLostError as error:
                lost_in_a_row += 1
                result = Measurement("failed", f"the device was lost: {error}")
            run.append({"kind": KIND, "problem": operator.key, "result": result, "conditions": conditions})
            done.add(operator.key)
            statuses[result.status] += 1
            if progress:
                pace = budget.pace(statuses.total(), statuses.total(), len(operators) - len(done))
                progress(len(done), len(operators), pace)
            if lost_in_a_row >= MAX_LOST_IN_A_ROW:
                return Outcome(len(done), len(operators), statuses, result.reason)
    return Outcome(len(done), len(operators), statuses)


def header_for(operators: Sequence[Operator], device: Any) -> Header:
    """The header of a run over ``operators``; its digest names them all."""
    digest = hashlib.sha256("\n".join(sorted(one.key for one in operators)).encode()).hexdigest()
    return Header(device.describe(), digest, (1, 1), "operators", 0, asdict(POLICY), round(time.time(), 3))
