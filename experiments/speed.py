"""How long an answer takes, side by side in one run: ours, a forest per algorithm, an MLP, and cuDNN's heuristic.

Clocks do not repeat bit for bit, so this experiment is run by itself and is not one of `experiments.catalogue.NAMES`.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.effort import Effort
from experiments.experiment import Experiment, Outcome
from experiments.script import run_script
from experiments.sources import Sources
from surrogate.bundle.bundle import Bundle, save
from surrogate.collect.networks import layers
from surrogate.dataset.rows import rows_of
from surrogate.dataset.store import Dataset
from surrogate.features.conv import Conv
from surrogate.features.errors import InputError
from surrogate.features.gpu import gpu
from surrogate.features.problem import SIZE_COLUMNS
from surrogate.models import Support, model_class
from surrogate.prediction.predictor import Predictor
from surrogate.prediction.shipped import load
from surrogate.uncertainty.conformal import ALL, Widths
from surrogate.uncertainty.domain import Domain

GPU = "Tesla V100-SXM2-16GB"
NETWORK = "ResNet-50"
PROBLEMS, BATCH_ROWS = 300, 200_000
BACKENDS = {"numpy": "numpy", "ONNX Runtime": "onnx", "XGBoost": "xgboost"}
OTHERS = {"forest per algorithm (nn-Meter)": "forest", "mlp (Habitat)": "mlp"}
HEURISTIC = "cuDNN's heuristic, deviceless"
QUESTIONS = {
    "predict": "one algorithm, µs",
    "select": "all algorithms, µs",
    "repeated": "asked before, µs",
    "network": f"{NETWORK}'s convolutions, ms",
    "batch": "rows per second",
}


def run(sources: Sources, effort: Effort) -> Outcome:
    """Fit on the cuDNN table, then ask every predictor the same questions, none of which it was asked before."""
    data = effort.sample(sources.dataset("cudnn"))
    convs = problems(data, PROBLEMS // (6 if effort.quick else 1), effort.seed)
    records = []
    trees = bundle(data, "boosted-terms", effort.seed)
    for name, fitted in {"boosted-terms": trees, "blend, as it ships": load(GPU).bundle}.items():
        for label, backend in BACKENDS.items():
            effort.tick(f"{name}, {label}")
            records.append({"predictor": f"{name}, {label}", **ours(fitted, backend, convs)})
    for label, model in OTHERS.items():
        effort.tick(label)
        records.append({"predictor": label, **by_table(bundle(data, model, effort.seed), convs)})
    effort.tick(HEURISTIC)
    records.append({"predictor": HEURISTIC, **heuristic(convs[:100])})
    effort.tick("cold starts")
    cold = cold_starts(trees)
    table = pd.DataFrame(records).rename(columns=QUESTIONS)
    note = " ".join(f"{name} takes {seconds * 1e3:.0f} ms cold." for name, seconds in cold.items())
    return Outcome(table, None, f"{table.to_string(index=False)}\n{note}")


def problems(data: Dataset, count: int, seed: int) -> list[Conv]:
    """Distinct problems of the table's shapes, at batches that need not be in it."""
    frame = data.frame[list(SIZE_COLUMNS)].drop_duplicates().sample(frac=1, random_state=seed)
    random = np.random.default_rng(seed)
    found: dict[Conv, None] = {}
    while len(found) < count:
        row = frame.iloc[int(random.integers(len(frame)))]
        sizes: dict[str, Any] = {name: int(row[name]) for name in SIZE_COLUMNS}
        try:
            found[Conv(**{**sizes, "n": int(random.integers(1, 257))})] = None
        except InputError:
            continue
    return list(found)


def bundle(data: Dataset, name: str, seed: int) -> Bundle:
    """The model fitted on all rows; what intervals cost is measured, not how good they are."""
    rows = rows_of(data.frame)
    fitted = model_class(name)().fit(rows, seed=seed)
    card = {"data": {"rows": len(rows), "gpus": sorted(data.frame["gpu"].unique()), "libraries": []}}
    return Bundle(fitted, Support.fit(rows), Widths({ALL: 0.3}), Domain.of(data.frame), card=card)


def ours(fitted: Bundle, backend: str, convs: Sequence[Conv]) -> dict[str, Any]:
    """The predictor's answers; the row says so where the backend is not installed."""
    try:
        served = Predictor(fitted, gpu=GPU, backend=backend)
    except InputError as error:
        return {"note": str(error)}
    served.select(convs[0])  # what is made ready once per setting

    def forgetful(ask: Callable[[Conv], Any]) -> Callable[[Conv], Any]:
        def fresh(conv: Conv) -> Any:
            served.forget()
            return ask(conv)

        return fresh

    network = layers(NETWORK)
    return {
        "predict": median_us(forgetful(lambda conv: served.predict(conv, "IMPLICIT_PRECOMP_GEMM")), convs),
        "select": median_us(forgetful(served.select), convs),
        "repeated": median_us(lambda _: served.select(convs[0]), convs),
        "network": network_ms(served, network),
        "batch": rows_per_second(lambda frame: served.predict(frame), big_table(convs)),
        "note": "; ".join(served.notes),
    }


def by_table(fitted: Bundle, convs: Sequence[Conv]) -> dict[str, Any]:
    """A model by the way it has: a table of one problem."""
    frames = [table_of([conv], names=("IMPLICIT_PRECOMP_GEMM",)) for conv in convs[:60]]
    whole = [table_of([conv]) for conv in convs[:60]]
    network = table_of(layers(NETWORK))
    return {
        "predict": median_us(fitted.predict, frames),
        "select": median_us(fitted.predict, whole),
        "network": median_us(fitted.predict, [network] * 5) / 1e3,
        "batch": rows_per_second(fitted.predict, big_table(convs).head(BATCH_ROWS // 10)),
        "note": "by way of a table",
    }


def heuristic(convs: Sequence[Conv]) -> dict[str, Any]:
    """cuDNN's graph heuristic on a described GPU; a row that says why where it cannot be asked."""
    from surrogate.collect.deviceless import Deviceless

    try:
        asked = Deviceless(gpu(GPU))
    except (InputError, OSError) as error:
        return {"note": str(error)}
    try:
        return {
            "select": median_us(asked.ranking, convs),
            "note": f"cuDNN {asked.describe().library_version}",
        }
    finally:
        asked.close()


def table_of(convs: Sequence[Conv], names: Sequence[str] = ()) -> pd.DataFrame:
    """A row per problem and algorithm."""
    from surrogate.features.algorithms import algorithms

    names = names or [one.name for one in algorithms("cudnn") if one.implemented]
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


def network_ms(served: Predictor, network: Sequence[Conv]) -> float:
    """The median of a few runs over a whole network, nothing remembered, in ms."""

    def once(_: int) -> None:
        served.forget()
        served.select_many(network)

    return median_us(once, range(9)) / 1e3


def rows_per_second(ask: Callable[[pd.DataFrame], Any], frame: pd.DataFrame) -> float:
    """The best of three, after one run that warms up."""
    ask(frame)
    return max(len(frame) / seconds for seconds in _laps(lambda: ask(frame), 3))


def _laps(work: Callable[[], Any], count: int) -> Iterator[float]:
    for _ in range(count):
        began = time.perf_counter()
        work()
        yield time.perf_counter() - began


def cold_starts(fitted: Bundle) -> dict[str, float]:
    """Seconds of two commands in processes of their own, files in the cache: the least of three."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bundle"
        save(fitted, path)
        ask = ["select", "--bundle", str(path), "--gpu", "v100", "n32c256h14w14k256r3s3p1u1"]
        return {
            f"`seer {words[0]}`": min(
                _laps(
                    lambda words=words: subprocess.run(
                        [sys.executable, "-m", "surrogate", *words], capture_output=True, check=True
                    ),
                    3,
                )
            )
            for words in (["--help"], ask)
        }


EXPERIMENT = Experiment("speed", "How long does an answer take, and how long elsewhere?", ("cudnn",), run)

if __name__ == "__main__":
    run_script(EXPERIMENT)
