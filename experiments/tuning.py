"""How many configurations must be tried on a GPU that was never measured until a fast one is found?

The data are brute-forced spaces of real kernels. One GPU is held out at a time, together with its twins. Each search
receives the times that it requests. The count is the number of different configurations, including failed ones.
"""

import json
import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib.util import find_spec
from io import StringIO
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from warnings import catch_warnings, simplefilter

import numpy as np
import pandas as pd

from experiments.experiment import Effort, ExperimentResult, program
from experiments.sources import Sources
from surrogate.dataset.tables import read_table
from surrogate.features.gpu import gpu
from surrogate.models.transfer import TransferState
from surrogate.report.charts import Axis, curves
from surrogate.tuning.search import Search

MAX_EVALUATIONS = 200
BUDGETS = (1, 10, 20, 50, 100, 200)
DRAWN = (1, 2, 3, 5, 7, 10, 14, 20, 30, 50, 70, 100, 140, 200)
"""Numbers of evaluations in the table and in the figure."""
SEEDS, WORKERS, RESAMPLES = 5, 2, 2000
NEAR = 1.05
TWINS = ({"NVIDIA TITAN RTX", "NVIDIA GeForce RTX 2080 Ti"},)
"""GPUs with the same chip: neither is used in training for the other."""
NOT_PARAMETERS = {"gpu", "problem_size", "status", "reason", "time_us"}
KERNEL_TUNER = ("genetic_algorithm", "simulated_annealing", "dual_annealing", "greedy_ils", "greedy_mls", "bayes_opt")
"""Kernel Tuner's strategies by their names in it."""
OURS, COLD, RANDOM, TPE = "transfer", "cold start", "random", "Optuna TPE"


@dataclass(frozen=True, slots=True)
class Space:
    """A kernel's configurations ``values`` (configurations, names) and its times (gpus, configurations) in µs.

    Times are inf for failures, and NaN without a measurement.
    """

    names: tuple[str, ...]
    values: np.ndarray
    gpus: tuple[str, ...]
    time_us: np.ndarray

    @classmethod
    def read(cls, path: Path) -> "Space":
        """Return the table of one kernel. The table's other columns are the kernel's parameters."""
        frame = read_table(path)[0]
        names = [str(name) for name in frame if name not in NOT_PARAMETERS and frame[name].nunique() > 1]
        ran = frame.assign(time_us=frame["time_us"].where(frame["status"] == "ok", np.inf))
        table = ran.pivot(index="gpu", columns=names, values="time_us").sort_index(axis="columns")
        values = np.array(table.columns.to_list(), dtype=np.int64)
        return cls(tuple(names), values, tuple(map(str, table.index)), table.to_numpy())


@dataclass(frozen=True, slots=True)
class Cell:
    """One kernel on one held-out GPU, with one seed, searched by these methods."""

    path: Path
    gpu: str
    seed: int
    methods: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Target:
    """The measured configurations for a search: ``values`` (n, names) and their times (n,), inf for failures.

    ``maximum`` is the limit of evaluations.
    """

    names: tuple[str, ...]
    values: np.ndarray
    time_us: np.ndarray
    seed: int
    maximum: int = MAX_EVALUATIONS


def run(sources: Sources, effort: Effort) -> ExperimentResult:
    """Run every kernel × GPU × seed in a process of its own, two at a time."""
    rivals = available((RANDOM, "genetic_algorithm") if effort.quick else (RANDOM, TPE, *KERNEL_TUNER))
    seeds = range(effort.seed, effort.seed + (1 if effort.quick else SEEDS))
    paths = sorted(sources.path("tuning").glob("*.parquet"))
    methods = (OURS, COLD, *rivals)
    cells = [Cell(path, name, seed, methods) for path in paths for name in Space.read(path).gpus for seed in seeds]
    table = summary(pd.concat(played(cells, effort.tick), ignore_index=True))
    drawn = table.assign(panel="geometric mean over kernels and GPUs")
    x = Axis("evaluations", "different configurations evaluated", log=True)
    figure = curves(drawn, x, Axis("found_over_optimum", "time found / optimum", log=True), "method", "panel")
    note = "" if set(KERNEL_TUNER) & set(rivals) else "Kernel Tuner is not installed: its strategies are left out."
    return ExperimentResult(table[table["evaluations"].isin(BUDGETS)].reset_index(drop=True), figure, note)


def available(rivals: Sequence[str]) -> tuple[str, ...]:
    """Return the installed ones of the rivals, because Kernel Tuner is not a dependency."""
    return tuple(name for name in rivals if name not in KERNEL_TUNER or find_spec("kernel_tuner"))


def played(cells: Sequence[Cell], tick: Callable[[str], None]) -> Iterator[pd.DataFrame]:
    """Yield the results of every cell in order, per method and number of evaluations."""
    with ProcessPoolExecutor(WORKERS, mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(play, cell) for cell in cells]
        for future in as_completed(futures):
            tick(str(future.result()["kernel"].iloc[0]))
        yield from (future.result() for future in futures)


def play(cell: Cell) -> pd.DataFrame:
    """Return the results of every method on one cell.

    Per number of evaluations, the result is the best time divided by the optimum. It also has the number of evaluations
    until the time is within 5 % (inf: not within `MAX_EVALUATIONS`).
    """
    space = Space.read(cell.path)
    left_out = space.gpus.index(cell.gpu)
    index = np.flatnonzero(~np.isnan(space.time_us[left_out]))
    target = Target(space.names, space.values[index], space.time_us[left_out, index], cell.seed)
    ran = target.time_us[np.isfinite(target.time_us)]
    records = []
    for method in cell.methods:
        order = transferred(space, left_out, index, target) if method == OURS else proposals(method, target)
        # Before the first success, the slowest configuration counts. A search that stopped keeps its last result.
        times = np.minimum.accumulate(np.minimum(target.time_us[order], ran.max())) / ran.min()
        near = np.append(np.flatnonzero(times <= NEAR) + 1.0, np.inf)[0]
        for evaluations in DRAWN:
            value = times[min(evaluations, len(times)) - 1]
            records.append((cell.path.stem, cell.gpu, cell.seed, method, evaluations, value, near))
    names = ["kernel", "gpu", "seed", "method", "evaluations", "found_over_optimum", "evaluations_within_5pct"]
    return pd.DataFrame(records, columns=pd.Index(names))


def transferred(space: Space, left_out: int, index: np.ndarray, target: Target) -> list[int]:
    """Return our search's order, with the data of the GPUs that are not twins of the target."""
    twins = next((group for group in TWINS if space.gpus[left_out] in group), {space.gpus[left_out]})
    others = [place for place, name in enumerate(space.gpus) if name not in twins]
    columns = np.array([gpu_columns(name) for name in space.gpus], dtype=np.float32)
    nothing = np.zeros((len(others), len(space.values), 0), dtype=np.float32)
    values = space.values.astype(np.float64)
    transfer = TransferState.fit(space.time_us[others], values, nothing, columns[others], seed=target.seed)
    prior = transfer.prior(columns[left_out], values[index], nothing[0, index], index)
    search = Search(
        target.values, prior=prior.score, failure=prior.failure, others=transfer.scores[:, index], seed=target.seed
    )
    return searched(search, target)


def gpu_columns(name: str) -> list[float]:
    """Return the columns that describe a GPU, with amounts in log2."""
    device = gpu(name)
    amounts = (
        device.sms,
        device.cores_per_sm,
        device.boost_mhz,
        device.dram_gbs,
        device.l2_bytes,
        device.shared_per_sm_bytes,
    )
    return [*np.log2(amounts).tolist(), device.compute_capability, float(device.vendor == "nvidia")]


def searched(search: Search, target: Target) -> list[int]:
    """Return the order of our search's requests, one by one."""
    order: list[int] = []
    while len(order) < target.maximum and len(answer := search.ask()):
        index = int(answer[0])
        time_us = float(target.time_us[index])
        search.tell(index, time_us if np.isfinite(time_us) else None)
        order.append(index)
    return order


def proposals(method: str, target: Target) -> list[int]:
    """Return the configurations that a method without other GPUs proposes, in order."""
    if method == COLD:
        return searched(Search(target.values, seed=target.seed), target)
    if method == RANDOM:
        return np.random.default_rng(target.seed).permutation(len(target.values))[: target.maximum].tolist()
    return optuna_order(target) if method == TPE else kernel_tuner_order(method, target)


def optuna_order(target: Target) -> list[int]:
    """Return the order of Optuna's TPE on categorical parameters.

    Combinations outside the space count as failed and cost nothing.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=target.seed))
    index_of = {tuple(values): index for index, values in enumerate(target.values.tolist())}
    choices = {name: np.unique(column).tolist() for name, column in zip(target.names, target.values.T, strict=True)}
    order: dict[int, None] = {}
    for _ in range(5 * target.maximum):
        trial = study.ask()
        index = index_of.get(tuple(trial.suggest_categorical(name, choices[name]) for name in target.names))
        if index is None or not np.isfinite(target.time_us[index]):
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
        else:
            study.tell(trial, float(np.log(target.time_us[index])))
        if index is not None:
            order[index] = None
        if len(order) == min(target.maximum, len(target.values)):
            break
    return list(order)


def kernel_tuner_order(strategy: str, target: Target) -> list[int]:
    """Return the order of a Kernel Tuner strategy in its simulation mode, which reads its cache format."""
    from kernel_tuner import tune_kernel

    keys = [tuple(values) for values in target.values.tolist()]
    index_of = {key: index for index, key in enumerate(keys)}
    parameters = {name: np.unique(column).tolist() for name, column in zip(target.names, target.values.T, strict=True)}
    cache = {
        ",".join(map(str, key)): dict(zip(target.names, key, strict=True))
        | {"time": time_us / 1e3 if np.isfinite(time_us) else "RuntimeFailedConfig"}
        | dict.fromkeys(("compile_time", "verification_time", "benchmark_time"), 0)
        for key, time_us in zip(keys, target.time_us.tolist(), strict=True)
    }
    content = {
        "device_name": "left out",
        "kernel_name": "kernel",
        "problem_size": [1],
        "tune_params_keys": list(target.names),
        "tune_params": parameters,
        "cache": cache,
    }

    def in_space(values: dict[str, int]) -> bool:
        return tuple(values[name] for name in target.names) in index_of

    random.seed(target.seed)
    np.random.seed(target.seed)
    with TemporaryDirectory() as folder, redirect_stdout(StringIO()), catch_warnings():
        simplefilter("ignore")  # on missing arguments and block sizes: the kernel does not run
        path = Path(folder) / "cache.json"
        path.write_text(json.dumps(content), encoding="utf-8")
        results = tune_kernel(
            "kernel",
            "__global__ void kernel() {}",
            (1,),
            [],
            parameters,
            restrictions=in_space,
            strategy=strategy,
            strategy_options={"max_fevals": target.maximum},
            simulation_mode=True,
            cache=str(path),
            quiet=True,
            lang="CUDA",
        )[0]
    order = dict.fromkeys(index_of[tuple(result[name] for name in target.names)] for result in results if result)
    return list(order)[: target.maximum]


def summary(found: pd.DataFrame) -> pd.DataFrame:
    """Return the geometric mean over kernels × GPUs with its bootstrap interval, per method and number of
    evaluations."""
    generator = np.random.default_rng(0)
    records = []
    for method, part in found.groupby("method", sort=False):
        near = part.drop_duplicates(["kernel", "gpu", "seed"])["evaluations_within_5pct"]
        for evaluations, rows in part.groupby("evaluations"):
            logs = (
                rows.assign(log=np.log(rows["found_over_optimum"])).groupby(["kernel", "gpu"])["log"].mean().to_numpy()
            )
            means = logs[generator.integers(len(logs), size=(RESAMPLES, len(logs)))].mean(axis=1)
            low, high = np.exp(np.quantile(means, [0.025, 0.975]))
            records.append(
                {
                    "method": method,
                    "evaluations": evaluations,
                    "found_over_optimum": np.exp(logs.mean()),
                    "ci_low": low,
                    "ci_high": high,
                    "median_evaluations_within_5pct": near.median(),
                    "runs_within_5pct": np.isfinite(near).sum(),
                    "runs": len(near),
                    "cells": len(logs),
                }
            )
    return pd.DataFrame(records)


EXPERIMENT = program(run, "tuning")
