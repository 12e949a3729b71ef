"""How long does an answer take, beside its bar and what others need in the same run?

Each question is new (except in the row that says otherwise), and the time includes features and interval. The figure is
the median over questions on one thread. For tables it is the best of three runs on all allowed threads. Peers get
prepared input: XGBoost and the nearest neighbours get finished columns, aiconfigurator gets loaded tables.

Times differ from run to run, so nothing else runs at the same time (`experiments.catalogue.ALONE`).
"""

import logging
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import product
from pathlib import Path
from timeit import repeat
from typing import Any

import numpy as np
import pandas as pd
from sklearn.neighbors import NearestNeighbors

from experiments.experiment import Effort, ExperimentResult, program
from experiments.held_out import candidate_rows
from experiments.sources import Sources, own_settings
from surrogate import Bundle, Conv, Dataset, InputError, Predictor, gpu, load, train
from surrogate.collect.plan_source import networks
from surrogate.dataset.rows import rows_of
from surrogate.dataset.threads import limit_threads, usable_cores
from surrogate.features.algorithms import algorithms
from surrogate.features.description import Description
from surrogate.features.families import CONV
from surrogate.features.problem import SIZE_COLUMNS
from surrogate.models import TimeModel
from surrogate.models.boosted import BoostedTerms
from surrogate.tuning import perf_model

GPU = "Tesla V100-SXM2-16GB"
ALGORITHM = "IMPLICIT_PRECOMP_GEMM"
NETWORK = "ResNet-50"
PROBLEMS, BATCH_ROWS = 300, 200_000
HEURISTIC = "cuDNN's heuristic, deviceless"
SDK_GPU, SDK_SYSTEM, SDK_WEIGHTS = "h200", ("h200_sxm", "trtllm", "1.3.0rc20"), (4096, 7168)
PLAN = own_settings(__file__)
BARS, COLD = PLAN["bars"], PLAN["cold"]
"""Timed task → its goal (NaN: no goal), and commands that are timed in processes of their own."""
Figures = dict[str, float]


def run(sources: Sources, effort: Effort) -> ExperimentResult:
    """Ask every predictor the same questions. The other models are fitted on the cuDNN table."""
    data = effort.sample(sources.dataset("cudnn"))
    convs = problems(data, PROBLEMS // (6 if effort.quick else 1), effort.seed)
    served = load(GPU)
    peers: dict[str, Figures | str] = {"XGBoost alone, on finished columns": alone(served, convs)}
    peers["nearest neighbour (scikit-learn), on finished columns"] = neighbours(served, convs)
    rows = candidate_rows([data])
    for label, name in PLAN["models"].items():
        effort.tick(label)
        peers[label] = by_table(effort.by_name(name)[name].fit(rows), convs)
    effort.tick(HEURISTIC)
    peers[HEURISTIC] = heuristic(convs[:100])
    peers["aiconfigurator's SDK"] = aiconfigurator()
    effort.tick("our own answers")
    figures = ours(served, convs) | described() | cold_starts()
    records = []
    for what, bar in BARS.items():
        others = {peer: theirs[what] for peer, theirs in peers.items() if isinstance(theirs, dict) and what in theirs}
        record = {"what": what, "bar": bar, "ours": figures[what]}
        records += [{**record, "peer": peer, "theirs": value} for peer, value in others.items()] or [record]
    table = pd.DataFrame(records)
    refused = [f"{peer}: {reason}." for peer, reason in peers.items() if isinstance(reason, str)]
    return ExperimentResult(table, note=" ".join(refused))


def problems(data: Dataset, count: int, seed: int) -> list[Conv]:
    """Return distinct problems with the table's shapes, at batches that the table may lack."""
    frame = data.frame[list(SIZE_COLUMNS)].drop_duplicates().sample(frac=1, random_state=seed)
    random = np.random.default_rng(seed)
    distinct: dict[Conv, None] = {}
    while len(distinct) < count:
        row = frame.iloc[int(random.integers(len(frame)))]
        sizes: dict[str, Any] = {name: int(row[name]) for name in SIZE_COLUMNS}
        with suppress(InputError):
            distinct[Conv(**{**sizes, "n": int(random.integers(1, 257))})] = None
    return list(distinct)


def ours(served: Predictor, convs: Sequence[Conv]) -> Figures:
    """Return the times of the predictor's answers."""
    served.select(convs[0])  # prepares the setting once
    products, (n, k) = load(SDK_GPU), SDK_WEIGHTS

    many = big_table(convs)
    answers = [
        median_us(lambda conv: served.predict(conv, ALGORITHM), convs, before=served.forget),
        median_us(served.select, convs, before=served.forget),
        median_us(lambda _: served.select(convs[0]), convs),
        median_us(products.select, [f"gemm:m{m}n{n}k{k}" for m in range(1, 201)], before=products.forget),
        median_us(served.select_many, [networks()[NETWORK]] * 9, before=served.forget) / 1e3,
        rows_per_second(lambda: served.predict(many), many),
    ]
    with limit_threads(usable_cores()):
        answers.append(rows_per_second(lambda: served.predict(many), many))
    return dict(zip(BARS, answers, strict=False))


def described() -> Figures:
    """Return the times for all configurations of an invented kernel at new sizes: by `select`, and through Triton's
    hook."""
    figures = {}
    for what, values in PLAN["described"].items():
        bundle = invented(values)
        predictor = Predictor(bundle, gpu=SDK_GPU)
        model = perf_model(bundle, SDK_GPU)
        grid = [dict(zip("abcd", each, strict=True)) for each in product(*(range(1, count + 1) for count in values))]

        def scores(m: int, model: Callable[..., float] = model, grid: list[dict[str, int]] = grid) -> None:
            for configuration in grid:
                model(m=m, **configuration)

        ask = scores if "perf_model" in what else lambda m, ask=predictor.select: ask(f"m{m}")
        ask(1)  # prepares the kernel once
        figures[what] = median_us(ask, range(1000, 1020)) / 1e3
    return figures


def invented(values: Sequence[int]) -> Bundle:
    """Return a bundle of a kernel with one size and parameters of these numbers of values.

    The bundle is fitted on five problems of one GPU.
    """
    parameters = {name: tuple(range(1, count + 1)) for name, count in zip("abcd", values, strict=True)}
    kernel = Description("invented", ("m",), parameters, {}, ())
    frame = pd.DataFrame(product((256, 512, 1024, 2048, 4096), *parameters.values()), columns=["m", *parameters])
    frame = frame.groupby("m").sample(min(1000, len(frame) // 5), random_state=0)
    time_us = frame["m"] * (1 + frame["a"] / frame["b"] + frame["b"] / frame["a"] + abs(frame["c"] - frame["d"]))
    return train(frame.assign(gpu=SDK_GPU, time_us=time_us, status="ok"), kernel=kernel)


def alone(served: Predictor, convs: Sequence[Conv]) -> Figures:
    """Return the times of XGBoost with the shipped trees and finished columns."""
    model, design = finished(served, big_table(convs))
    booster = model.tree_arrays().trees.booster(design.shape[1])
    questions = [design[row : row + 1] for row in range(0, 3000, 10)]
    booster.set_param({"nthread": 1})
    figures = {"one algorithm, µs": median_us(booster.inplace_predict, questions)}
    figures["rows per second, one thread"] = rows_per_second(lambda: booster.inplace_predict(design), design)
    booster.set_param({"nthread": usable_cores()})
    return figures | {"rows per second": rows_per_second(lambda: booster.inplace_predict(design), design)}


def neighbours(served: Predictor, convs: Sequence[Conv]) -> Figures:
    """Return the time of a search for the nearest of 10,000 rows: the minimum cost of an interval by distance."""
    _, design = finished(served, big_table(convs))
    fitted = NearestNeighbors(n_neighbors=1).fit(np.nan_to_num(design[::20]))
    queries = np.nan_to_num(design[:20_000])
    return {"rows per second, one thread": rows_per_second(lambda: fitted.kneighbors(queries), queries)}


def finished(served: Predictor, frame: pd.DataFrame) -> tuple[BoostedTerms, np.ndarray]:
    """Return the shipped model of convolutions and its input (rows, columns) for a table."""
    model = served.bundle.family_models["conv"].model
    assert isinstance(model, BoostedTerms)
    return model, model.design(rows_of(frame, CONV))


def by_table(fitted: TimeModel, convs: Sequence[Conv]) -> Figures:
    """Return the times of a model whose interface is a table of one problem."""

    def predict(frame: pd.DataFrame) -> np.ndarray:
        return fitted.predict(rows_of(frame, CONV))

    many = big_table(convs).head(BATCH_ROWS // 10)
    return {
        "one algorithm, µs": median_us(predict, [table_of([conv], names=(ALGORITHM,)) for conv in convs[:60]]),
        "all algorithms, µs": median_us(predict, [table_of([conv]) for conv in convs[:60]]),
        f"{NETWORK}'s 53 convolutions, ms": median_us(predict, [table_of(networks()[NETWORK])] * 5) / 1e3,
        "rows per second, one thread": rows_per_second(lambda: predict(many), many),
    }


def heuristic(convs: Sequence[Conv]) -> Figures | str:
    """Return the times of cuDNN's graph heuristic on a described GPU, or the reason why it is not available."""
    from surrogate.collect.cudnn_heuristic import HeuristicDevice

    try:
        device = HeuristicDevice(gpu(GPU))
    except (InputError, OSError) as error:
        return str(error)
    try:
        return {"all algorithms, µs": median_us(device.heuristic, convs)}
    finally:
        device.close()


def aiconfigurator() -> Figures | str:
    """Return the times of aiconfigurator's SDK for a matrix product, or the reason why it is not available."""
    try:
        import aiconfigurator_core
        from aiconfigurator_core.sdk import common, perf_database
        from aiconfigurator_core.sdk.operations.gemm import GEMM
    except ImportError as error:
        return str(error)
    logging.disable(logging.WARNING)
    systems = str(Path(str(aiconfigurator_core.__file__)).parent / "systems")
    database = perf_database.get_database(*SDK_SYSTEM, systems_paths=[systems], allow_unlisted_version=True)
    if database is None:
        return f"it has no tables of {SDK_SYSTEM}"
    gemm = GEMM("", 1.0, *SDK_WEIGHTS, common.GEMMQuantMode["bfloat16"])
    return {"a matrix product, µs": median_us(lambda m: gemm._engine_query(database, x=m), range(1, 201))}


def table_of(convs: Sequence[Conv], names: Sequence[str] = ()) -> pd.DataFrame:
    """Return a row per problem and algorithm."""
    names = names or [algorithm.name for algorithm in algorithms("cudnn") if algorithm.implemented]
    frame = pd.DataFrame([conv.to_dict() for conv in convs for _ in names])
    frame["algorithm"] = list(names) * len(convs)
    return frame.assign(gpu=GPU, library="cudnn", library_version="7.6.3")


def big_table(convs: Sequence[Conv]) -> pd.DataFrame:
    """Return `BATCH_ROWS` rows: every problem at many batches."""
    frame = table_of(convs)
    copies = -(-BATCH_ROWS // len(frame))
    parts = [frame.assign(n=1 + (frame["n"] + 7 * copy) % 256) for copy in range(copies)]
    return pd.concat(parts, ignore_index=True).head(BATCH_ROWS)


def median_us(ask: Callable[[Any], Any], questions: Sequence[Any], before: Callable[[], Any] = lambda: None) -> float:
    """Return the median time in µs over the questions, each asked once. ``before`` is called before each and not
    timed."""
    taken = []
    for question in questions:
        before()
        began_ns = time.perf_counter_ns()
        ask(question)
        taken.append(time.perf_counter_ns() - began_ns)
    return float(np.median(taken)) / 1e3


def rows_per_second(work: Callable[[], Any], rows: Sequence[Any] | np.ndarray | pd.DataFrame) -> float:
    """Return the best of three runs, after one run for warm-up."""
    work()
    return len(rows) / min(repeat(work, number=1, repeat=3))


def cold_starts() -> Figures:
    """Return the minimum of three runs, in ms, for two commands in processes of their own with cached files."""
    return {f"{name}, ms": 1e3 * min(repeat(partial(start, words), number=1, repeat=3)) for name, words in COLD.items()}


def start(words: Sequence[str]) -> None:
    """Run ``seer`` with these words in a process of its own."""
    subprocess.run([sys.executable, "-m", "surrogate", *words], capture_output=True, check=True)


EXPERIMENT = program(run, "cudnn")
