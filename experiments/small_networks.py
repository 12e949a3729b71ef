"""What do TF32's convolutions and the hosts that launch kernels take, by programs of one operator to a small network?

``python -m experiments.small_networks`` fits the law of TF32's convolutions and the constants of
`surrogate.network.runtime` to KernelBench's times of half the programs on 14 GPUs, judges both on the other half, and
writes what ships (12 minutes). ``rows()`` gives the passes of the other half, by what ships. Needs torch; no GPU.
"""

import importlib
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from experiments.experiment import HOME
from experiments.image_networks import Parts, crc, fitted, log_errors, network_of, parts
from experiments.sources import beside
from surrogate import bundled, gpu
from surrogate.dataset.files import write_text
from surrogate.features.terms.tensor_core import TensorCoreLaw
from surrogate.network.network import Network
from surrogate.network.predict import load_predictors
from surrogate.network.runtime import FILE as HOSTS_FILE
from surrogate.network.runtime import RUNTIMES, LaunchLaw, launched, operators_and_views
from surrogate.prediction.specification import FILE, HALVES, TF32

FOLDER = HOME / "data" / "kernelbench"
NAMES = beside(__file__)
ORIGIN = "github.com/ScalingIntelligence/KernelBench, results/timing, MIT"
LEVELS = ("level1", "level2", "level3")
PROGRAM = ["sizes", "level", "problem"]
START = {"start_us": 15.0, "tile_time": 0.3}
"""Where the fit of what large batches do not tell begins."""


@cache
def measured() -> pd.DataFrame:
    """Mean times of `LEVELS` on one GPU: `PROGRAM`, ``gpu runtime host measured_ms`` and whether the program is one
    that the constants are fitted to; of several files of a GPU and a host the median."""
    table = pd.read_parquet(FOLDER / "baselines.parquet")
    folder, file = (table["file"].str.split("/").str[each] for each in (-2, -1))
    sizes = NAMES["sizes"]
    grown = (table["date"] >= sizes["grew"]) & ~table["commit"].isin(sizes["old_commits"])
    runtime = pd.Series(None, index=table.index, dtype=object)
    for end, name in NAMES["runtimes"].items():
        runtime[file.str.endswith(end)] = name
    table = table.assign(
        runtime=runtime,
        host=np.where(folder.isin(NAMES["hosts"]["fast"]), "fast", "usual"),
        sizes=np.where(grown, "new", "old"),
        training=(table["level"] + "/" + table["problem"]).map(crc) % 2 == 0,
    )
    known = table["hardware"].notna() & table["level"].isin(LEVELS) & runtime.notna() & (folder != "old")
    table = table[known & ~table["commit"].isin(sizes["mixed_commits"])]
    table = table.assign(gpu=table["hardware"].map({name: gpu(name).name for name in table["hardware"].unique()}))
    keys = [*PROGRAM, "gpu", "runtime", "host", "training"]
    return table.groupby(keys)["mean_ms"].median().rename("measured_ms").reset_index()


@contextmanager
def _imported(folder: str, name: str) -> Iterator[ModuleType]:
    """A program's module, which stands in an archive under a name that is no identifier."""
    sys.path.insert(0, f"{FOLDER / 'programs.zip'}/{folder}")
    try:
        yield importlib.import_module(name)
    finally:
        sys.path.pop(0)
        sys.modules.pop(name, None)


def _built(program: ModuleType, fake: Any) -> Any:
    """A program's module of fake tensors; built for real where its constructor asks for values that it computed."""
    try:
        with fake:
            return program.Model(*program.get_init_inputs())
    except RuntimeError:
        return program.Model(*program.get_init_inputs())._apply(fake.from_tensor)


@cache
def read(sizes: str, level: str, problem: str) -> Network | None:
    """A program's forward pass as its harness runs it, in training mode without gradients; None where torch has no fake
    tensors for it, or an operator of it is unknown."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    try:
        with _imported(f"{sizes}/{level}", problem.removesuffix(".py")) as program:
            fake = FakeTensorMode(allow_non_fake_inputs=True)
            model = _built(program, fake)
            with fake:
                network = network_of(f"{level}/{problem}", model, tuple(program.get_inputs()))
    except (ImportError, RuntimeError):
        return None
    return network if network.layers and not network.unsupported else None


def passes(training: bool) -> tuple[pd.DataFrame, list[Network]]:
    """The measured passes of the programs fitted or held out that can be read, and their networks as run."""
    table = measured()
    table = table[table["training"] == training]
    table = table[[read(*row) is not None for row in table[PROGRAM].to_numpy()]]
    runs = [(read(*(row[name] for name in PROGRAM)), row["runtime"], row["host"]) for row in table.to_dict("records")]
    return table, [launched(network, runtime, host) for network, runtime, host in runs if network]


_predictors = cache(load_predictors)


def rows() -> pd.DataFrame:
    """Passes of the programs held out, as what ships predicts them: a row a pass, times in ms, a set a runtime."""
    table, networks = passes(training=False)
    times = [_predictors(name).time(network) for name, network in zip(table["gpu"], networks, strict=True)]
    table = table.assign(phase="inference", set="small programs, " + table["runtime"], network=table["problem"])
    for name in ("total", "lower", "upper", "kernels"):
        table[f"{'predicted' if name == 'total' else name}_ms"] = [getattr(time, f"{name}_us") / 1e3 for time in times]
    return table


def fitted_launches(
    table: pd.DataFrame, counts: np.ndarray, kernels_us: np.ndarray
) -> tuple[dict[str, LaunchLaw], float]:
    """Laws by runtime, and a usual host's factor, of robust least squares in log time.

    ``counts`` is (passes, 2): operators and views; ``kernels_us`` (passes,) what the GPU takes.
    """
    kinds = list(RUNTIMES)
    kind, slow = table["runtime"].map(kinds.index).to_numpy(), (table["host"] == "usual").to_numpy()
    log_measured = np.log(1e3 * table["measured_ms"].to_numpy())

    def errors(x: np.ndarray) -> np.ndarray:
        constants, factor = np.exp(x[:-1]).reshape(len(kinds), 3)[kind], np.where(slow, np.exp(x[-1]), 1.0)
        launch_us = factor * (constants[:, :2] * counts).sum(axis=1)
        return np.log(np.maximum(kernels_us, launch_us) + factor * constants[:, 2]) - log_measured

    start = np.log([*([4.0, 1.0, 20.0] * len(kinds)), 2.0])
    solution = least_squares(errors, start, loss="soft_l1", f_scale=0.2, diff_step=1e-3, bounds=(-5.0, 8.0))
    values = [float(f"{value:.3g}") for value in np.exp(solution.x)]
    return {name: LaunchLaw(*values[3 * i : 3 * i + 3], half_width=0.0) for i, name in enumerate(kinds)}, values[-1]


def with_widths(table: pd.DataFrame, counts: np.ndarray, kernels_us: np.ndarray) -> tuple[dict[str, LaunchLaw], float]:
    """`fitted_launches`, whose widths hold 90 % of the passes that launches bound, each GPU's by the others' fit."""
    ratios = []
    for name in table["gpu"].unique():
        own = (table["gpu"] == name).to_numpy()
        laws, usual = fitted_launches(table[~own], counts[~own], kernels_us[~own])
        ratios.append(launch_errors(table[own], counts[own], kernels_us[own], laws, usual))
    errors = pd.concat(ratios).dropna().abs()
    laws, usual = fitted_launches(table, counts, kernels_us)
    widths = errors.groupby(table["runtime"]).quantile(0.9)
    return {name: replace(law, half_width=round(float(widths[name]), 3)) for name, law in laws.items()}, usual


def launch_errors(
    table: pd.DataFrame, counts: np.ndarray, kernels_us: np.ndarray, laws: dict[str, LaunchLaw], usual: float
) -> pd.Series:
    """log of predicted / measured of the passes that launches bound; others are missing."""
    constants = np.array([[law.operator_us, law.view_us, law.floor_us] for law in table["runtime"].map(laws)])
    factor = np.where(table["host"] == "usual", usual, 1.0)
    launch_us = factor * (constants[:, :2] * counts).sum(axis=1)
    errors = np.log((launch_us + factor * constants[:, 2]) / (1e3 * table["measured_ms"]))
    return errors.where(launch_us > kernels_us)


def main() -> None:
    """Fit on the programs of the training half; print the errors on the others by what ships then."""
    laws = json.loads((bundled.FOLDER / FILE).read_bytes())
    start = TensorCoreLaw(**(laws[HALVES]["law"] | START))
    table, networks = passes(training=True)
    every = [parts(network, _predictors(name)) for name, network in zip(table["gpu"], networks, strict=True)]
    # 1. TF32's convolutions, by passes that the kernels bound and that have any; each GPU's errors by the others' fit.
    some = np.array([bool(each.timed) and each.others_us < 0.5e3 * ms for each, ms in zip(every, table["measured_ms"])])
    convolved = [each._replace(host=None) for each, take in zip(every, some, strict=True) if take]
    conv_ms = table["measured_ms"][some] - np.array(
        [each.host.floor_us / 1e3 for each, take in zip(every, some) if take]
    )
    names, errors = np.array([each.gpu.name for each in convolved]), []
    for name in np.unique(names):
        others = [each for each in convolved if each.gpu.name != name]
        law = fitted(others, conv_ms[names != name], start)
        errors.append(
            np.abs(log_errors(law, [each for each in convolved if each.gpu.name == name], conv_ms[names == name]))
        )
        print(f"TF32 on {name}, by the others: {np.expm1(np.median(errors[-1])):.1%} of {len(errors[-1])}", flush=True)
    law = fitted(convolved, conv_ms, start)
    median, half_width = np.quantile(np.concatenate(errors), [0.5, 0.9]).round(3).tolist()
    across = {"gpus": len(errors), "median_ape": median, "half_width": half_width}
    laws[TF32] = {
        "law": asdict(law),
        "fitted_on": sorted(set(names.tolist())),
        "origin": ORIGIN,
        "by_kind": {"": across},
    }
    write_text(bundled.FOLDER / FILE, json.dumps(laws, indent=1) + "\n")
    # 2. The hosts, with the kernels' times by that law.
    counts = np.array([operators_and_views(network) for network in networks])
    kernels_us = np.array([each._replace(host=None).time_us(law) for each in every])
    launches, usual = with_widths(table, counts, kernels_us)
    shipped = {"origin": ORIGIN, "usual": usual, "laws": {name: asdict(law) for name, law in launches.items()}}
    write_text(bundled.FOLDER / HOSTS_FILE, json.dumps(shipped, indent=1) + "\n")


if __name__ == "__main__":
    main()
