"""How fast are configurations chosen for shapes never measured, of a kernel that was really measured on a CPU?

The kernel is a matrix product in OpenCL; `experiments.cpu_kernel` measured its table. Whole shapes are held out: a
choice for a shape uses only the shapes of the other folds. Each method gives an order of the configurations. Its result
is the best time among the first of them. Times that differ by less than the table's noise are equal.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from experiments.experiment import Effort, ExperimentResult, program
from experiments.sources import Sources
from experiments.tuning import RANDOM, Target, available, proposals
from surrogate.bundle.bundle import Bundle
from surrogate.bundle.train import train
from surrogate.dataset.splits import fold_of_names
from surrogate.dataset.store import Dataset, read_dataset
from surrogate.evaluation.judge import shape_interval
from surrogate.features.description import Configuration
from surrogate.prediction.predictor import Predictor
from surrogate.report.charts import Axis, curves
from surrogate.tuning.tuner import Tuner

BUDGETS = (1, 3, 10, 30)
"""Numbers of configurations tried: the pick, the best of three, and short searches."""
FOLDS, RESAMPLES = 6, 2000
OURS, SEARCH, AVERAGE, NEAREST = "predicted ranking", "search from it", "best on average", "nearest shape's ranking"
RIVALS = ("Optuna TPE", "genetic_algorithm", "dual_annealing", "greedy_ils", "bayes_opt")
"""Searches without data of other shapes."""
Order = list[int]


@dataclass(frozen=True, slots=True)
class Measured:
    """A kernel's measured times on one ``gpu``.

    ``time_us`` is (shapes, configurations), inf for failures. ``shapes`` is (n, sizes), ``values`` is (configurations,
    parameters), and ``noise`` comes from the table's metadata.
    """

    gpu: str
    sizes: tuple[str, ...]
    names: tuple[str, ...]
    shapes: np.ndarray
    values: np.ndarray
    time_us: np.ndarray
    noise: float

    @classmethod
    def of(cls, data: Dataset) -> "Measured":
        """Return the times of a described kernel's table of one GPU."""
        description = data.description
        assert description is not None, "the source is a described kernel's table"
        sizes, names = list(description.sizes), list(description.parameters)
        finite = data.frame.assign(time_us=np.where(data.frame["status"] == "ok", data.frame["time_us"], np.inf))
        table = finite.pivot(index=sizes, columns=names, values="time_us")
        return cls(
            str(data.frame["gpu"].iloc[0]),
            tuple(sizes),
            tuple(names),
            np.array(table.index.to_list()),
            np.array(table.columns.to_list()),
            table.to_numpy(),
            float(data.metadata.get("noise", 0.0)),
        )

    @property
    def log_slowdown(self) -> np.ndarray:
        """Return log(time / the shape's best), (shapes, configurations).

        Slowdowns within the noise are 0. A failure counts as the slowest configuration.
        """
        ran = np.isfinite(self.time_us)
        slowest = np.where(ran, self.time_us, 0.0).max(axis=1, keepdims=True)
        log = np.log(np.where(ran, self.time_us, slowest) / self.time_us.min(axis=1, keepdims=True))
        return np.where(log <= np.log1p(self.noise), 0.0, log)

    def problem(self, shape: int) -> dict[str, int]:
        """Return the sizes of one shape by name."""
        return dict(zip(self.sizes, self.shapes[shape].tolist(), strict=True))

    def place(self, configuration: Configuration) -> int:
        """Return the index of a configuration."""
        return int(np.flatnonzero((self.values == [configuration[name] for name in self.names]).all(axis=1))[0])


def run(sources: Sources, effort: Effort) -> ExperimentResult:
    """Judge every method on every fold's shapes. A quick run judges two of the six folds."""
    data = read_dataset(sources.path("cpu_matmul"))
    measured = Measured.of(data)
    found = pd.concat([played(data, measured, fold, effort) for fold in range(2 if effort.quick else FOLDS)])
    table = summary(found)
    drawn = table.assign(panel=f"{found['shape'].nunique()} shapes held out")
    x = Axis("evaluations", "configurations tried", log=True)
    figure = curves(drawn, x, Axis("slowdown_macro", "best of them / optimum", log=True), "method", "panel")
    return ExperimentResult(table, figure)


def played(data: Dataset, measured: Measured, fold: int, effort: Effort) -> pd.DataFrame:
    """Return the results of each method on the shapes of one fold."""
    names = pd.Series(["x".join(map(str, shape)) for shape in measured.shapes.tolist()])
    fold_of = fold_of_names(names, FOLDS, effort.seed)
    holdout = (names.map(fold_of) == fold).to_numpy()
    fold_of_row = data.frame[list(measured.sizes)].astype(str).agg("x".join, axis=1).map(fold_of)
    bundle = train(data.with_frame(data.frame[fold_of_row != fold]), seed=effort.seed)
    log_slowdown = measured.log_slowdown
    records = []
    for shape in np.flatnonzero(holdout).tolist():
        for method, order in orders(bundle, measured, shape, ~holdout, effort).items():
            effort.tick(f"{names[shape]} {method}")
            tried = np.minimum.accumulate(log_slowdown[shape, order()])
            for evaluations in BUDGETS:
                record = {"shape": names[shape], "method": method, "evaluations": evaluations}
                # A search that stopped early keeps its last result.
                records.append(record | {"log_slowdown": tried[min(evaluations, len(tried)) - 1]})
    return pd.DataFrame(records)


def orders(
    bundle: Bundle, measured: Measured, shape: int, training_shapes: np.ndarray, effort: Effort
) -> dict[str, Callable[[], Order]]:
    """Return method → the configurations for ``shape`` in the order of the trials. ``training_shapes`` are the training
    shapes."""
    target = Target(measured.names, measured.values, measured.time_us[shape], effort.seed, max(BUDGETS))
    training_slowdowns = measured.log_slowdown[training_shapes]
    gaps = np.abs(np.log(measured.shapes[training_shapes] / measured.shapes[shape])).sum(axis=1)
    rivals = available((RANDOM, "genetic_algorithm") if effort.quick else (RANDOM, *RIVALS))
    return {
        OURS: lambda: predicted(bundle, measured, shape),
        SEARCH: lambda: searched(bundle, measured, shape, effort.seed),
        AVERAGE: lambda: np.argsort(training_slowdowns.mean(axis=0), kind="stable").tolist(),
        NEAREST: lambda: np.argsort(training_slowdowns[np.argmin(gaps)], kind="stable").tolist(),
        **{rival: lambda rival=rival: proposals(rival, target) for rival in rivals},
    }


def predicted(bundle: Bundle, measured: Measured, shape: int) -> Order:
    """Return the first candidates of `select`."""
    problem = "".join(f"{name}{size}" for name, size in measured.problem(shape).items())
    selection = Predictor(bundle, gpu=measured.gpu).select(problem, top=max(BUDGETS))
    return [measured.place(ranked.parameters or {}) for ranked in selection.candidates]


def searched(bundle: Bundle, measured: Measured, shape: int, seed: int) -> Order:
    """Return the configurations that a `Tuner` proposes when it receives each time."""
    tuner = Tuner(bundle, measured.gpu, measured.problem(shape), seed=seed)
    order = []
    while len(order) < max(BUDGETS) and (configurations := tuner.ask()):
        order.append(measured.place(configurations[0]))
        time_us = float(measured.time_us[shape, order[-1]])
        tuner.tell(configurations[0], time_us if np.isfinite(time_us) else None)
    return order


def summary(found: pd.DataFrame) -> pd.DataFrame:
    """Return the geometric mean slowdown over shapes with its interval, per method and number of configurations
    tried."""
    records = []
    for (method, evaluations), rows in found.groupby(["method", "evaluations"], sort=False):
        log = rows["log_slowdown"].to_numpy()
        low, mid, high = np.exp(shape_interval(log, np.arange(len(log)), macro=True, draws=RESAMPLES, seed=0))
        records.append(
            {
                "method": method,
                "evaluations": evaluations,
                "shapes": len(log),
                "slowdown_macro": mid,
                "ci_low": low,
                "ci_high": high,
                "slowdown_p95": np.exp(np.quantile(log, 0.95)),
                "slowdown_max": np.exp(log.max()),
                "best_pct": 100 * np.mean(log == 0),
            }
        )
    return pd.DataFrame(records)


EXPERIMENT = program(run, "cpu_matmul")
