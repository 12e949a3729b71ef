"""How long does an answer take, and how long elsewhere?

How long an answer takes, side by side in one run: ours, a forest per algorithm, an MLP, and cuDNN's heuristic.

Clocks do not repeat bit for bit, so nothing runs beside this experiment (`experiments.catalogue.ALONE`).
"""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from experiments.experiment import Effort, Experiment, Outcome, run_script
from experiments.held_out import candidate_rows
from experiments.sources import Sources
from surrogate.collect.plan_source import networks
from surrogate.dataset.rows import rows_of
from surrogate.dataset.store import Dataset
from surrogate.features.algorithms import algorithms
from surrogate.features.conv import Conv
from surrogate.features.errors import InputError
from surrogate.features.families import CONV
from surrogate.features.gpu import gpu
from surrogate.features.problem import SIZE_COLUMNS
from surrogate.models import TimeModel
from surrogate.prediction.predictor import Predictor
from surrogate.prediction.shipped import load

GPU = "Tesla V100-SXM2-16GB"
NETWORK = "ResNet-50"
PROBLEMS, BATCH_ROWS = 300, 200_000
OTHERS = {"forest per algorithm (nn-Meter)": "forest", "mlp (Habitat)": "mlp"}
HEURISTIC = "cuDNN's heuristic, deviceless"
COLD = {"`seer --help`": ("--help",), "`seer select`": ("select", "--gpu", "v100", "n32c256h14w14k256r3s3p1u1")}
"""Commands that are timed in processes of their own."""
QUESTIONS = {
    "predict": "one algorithm, µs",
    "select": "all algorithms, µs",
    "repeated": "asked before, µs",
    "network": f"{NETWORK}'s convolutions, ms",
    "batch": "rows per second",
}


def run(sources: Sources, effort: Effort) -> Outcome:
    """Ask every predictor the same questions, none of which it was asked before; the others learn the cuDNN table."""
    data = effort.sample(sources.dataset("cudnn"))
    convs = problems(data, PROBLEMS // (6 if effort.quick else 1), effort.seed)
    records = [{"predictor": "the bundle that ships", **ours(load(GPU), convs)}]
    rows = candidate_rows([data])
    for label, name in OTHERS.items():
        effort.tick(label)
        records.append({"predictor": label, **by_table(effort.named(name)[name].fit(rows), convs)})
    effort.tick(HEURISTIC)
    records.append({"predictor": HEURISTIC, **heuristic(convs[:100])})
    effort.tick("cold starts")
    cold = cold_starts()
    table = pd.DataFrame(records).rename(columns=QUESTIONS)
    note = " ".join(f"{name} takes {seconds * 1e3:.0f} ms cold." for name, seconds in cold.items())
    return Outcome(table, None, f"{table.to_string(index=False)}\n{note}")


def problems(data: Dataset, count: int, seed: int) -> list[Conv]:
    """Distinct problems of the table's shapes, at batches that need not be in it."""
    frame = data.frame[list(SIZE_COLUMNS)].drop_duplicates().sample(frac=1, random_state=seed)
    random = np.random.default_rng(seed)
    distinct: dict[Conv, None] = {}
    while len(distinct) < count:
        row = frame.iloc[int(random.integers(len(frame)))]
        sizes: dict[str, Any] = {name: int(row[name]) for name in SIZE_COLUMNS}
        try:
            distinct[Conv(**{**sizes, "n": int(random.integers(1, 257))})] = None
        except InputError:
            continue
    return list(distinct)


def ours(served: Predictor, convs: Sequence[Conv]) -> dict[str, Any]:
    """The predictor's answers."""
    served.select(convs[0])  # what is made ready once per setting

    def forgetful(ask: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def fresh(question: Any) -> Any:
            served.forget()
            return ask(question)

        return fresh

    network = networks()[NETWORK]
    return {
        "predict": median_us(forgetful(lambda conv: served.predict(conv, "IMPLICIT_PRECOMP_GEMM")), convs),
        "select": median_us(forgetful(served.select), convs),
        "repeated": median_us(lambda _: served.select(convs[0]), convs),
        "network": median_us(forgetful(served.select_many), [network] * 9) / 1e3,
        "batch": rows_per_second(lambda frame: served.predict(frame), big_table(convs)),
    }


def by_table(fitted: TimeModel, convs: Sequence[Conv]) -> dict[str, Any]:
    """A model by the way it has: a table of one problem."""

    def predict(frame: pd.DataFrame) -> np.ndarray:
        return fitted.predict(rows_of(frame, CONV))

    frames = [table_of([conv], names=("IMPLICIT_PRECOMP_GEMM",)) for conv in convs[:60]]
    whole = [table_of([conv]) for conv in convs[:60]]
    network = table_of(networks()[NETWORK])
    return {
        "predict": median_us(predict, frames),
        "select": median_us(predict, whole),
        "network": median_us(predict, [network] * 5) / 1e3,
        "batch": rows_per_second(predict, big_table(convs).head(BATCH_ROWS // 10)),
        "note": "by way of a table",
    }


def heuristic(convs: Sequence[Conv]) -> dict[str, Any]:
    """cuDNN's graph heuristic on a described GPU; a row that says why where it cannot be asked."""
    from surrogate.collect.deviceless import Deviceless

    try:
        device = Deviceless(gpu(GPU))
    except (InputError, OSError) as error:
        return {"note": str(error)}
    try:
        note = f"cuDNN {device.describe().library_version}"
        return {"select": median_us(device.heuristic, convs), "note": note}
    finally:
        device.close()


def table_of(convs: Sequence[Conv], names: Sequence[str] = ()) -> pd.DataFrame:
    """A row per problem and algorithm."""
    names = names or [algorithm.name for algorithm in algorithms("cudnn") if algorithm.implemented]
    frame = pd.DataFrame([conv.to_dict() for conv in convs for _ in names])
    frame["algorithm"] = list(names) * len(convs)
    return frame.assign(gpu=GPU, library="cudnn", library_version="7.6.3")


def big_table(convs: Sequence[Conv]) -> pd.DataFrame:
    """`BATCH_ROWS` rows, every problem at many batches."""
    frame = table_of(convs)
    copies = -(-BATCH_ROWS // len(frame))
    parts = [frame.assign(n=1 + (frame["n"] + 7 * copy) % 256) for copy in range(copies)]
    return pd.concat(parts, ignore_index=True).head(BATCH_ROWS)


def median_us(ask: Callable[[Any], Any], questions: Sequence[Any]) -> float:
    """Median over the questions, each asked once, in µs."""
    taken = []
    for question in questions:
        began_ns = time.perf_counter_ns()
        ask(question)
        taken.append(time.perf_counter_ns() - began_ns)
    return float(np.median(taken)) / 1e3


def rows_per_second(ask: Callable[[pd.DataFrame], Any], frame: pd.DataFrame) -> float:
    """The best of three, after one run that warms up."""
    ask(frame)
    return max(len(frame) / seconds for seconds in _laps(lambda: ask(frame), 3))


def _laps(work: Callable[[], Any], count: int) -> Iterator[float]:
    for _ in range(count):
        began = time.perf_counter()
        work()
        yield time.perf_counter() - began


def cold_starts() -> dict[str, float]:
    """Seconds of two commands in processes of their own, files in the cache: the least of three."""
    return {name: min(_laps(partial(start, words), 3)) for name, words in COLD.items()}


def start(words: Sequence[str]) -> None:
    """Run ``seer`` with these words in a process of its own."""
    subprocess.run([sys.executable, "-m", "surrogate", *words], capture_output=True, check=True)


EXPERIMENT = Experiment.of(run, ("cudnn",))

if __name__ == "__main__":
    run_script(EXPERIMENT)
