"""Fit the constants of TF32 convolutions and of launching hosts to programs of one operator up to a small network.

``python -m experiments.small_networks`` fits the analytical model of TF32's convolutions and the constants of
`surrogate.network.runtime`. It uses KernelBench's times of half of the programs on 14 GPUs, and writes the shipped
constants (12 minutes). `experiments.whole_networks` judges them on the other half: ``rows()`` returns its passes,
predicted by the shipped constants. The script needs neither the programs, nor torch, nor a GPU, because
`experiments.program_calls` recorded the programs' calls.

``python -m experiments.small_networks transfers`` transfers the eager time of each program between all GPUs that ran
it, by the rules of ``seer trace whatif gpu=G``, and prints how many times are inside the intervals (one minute). The
minimum factors of the intervals, `BOARD_FACTOR`, are fitted to the same half of the programs.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cache
from itertools import permutations
from math import log
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from experiments.experiment import HOME
from experiments.image_networks import Passes, Search, crc, network_of, predictors_of, rounded, stacked
from experiments.sources import own_settings
from surrogate import bundled, gpu
from surrogate.dataset.files import write_text
from surrogate.features.analytical import TensorCoreModel
from surrogate.network.aten_call import UNKNOWN, Call, Tensor
from surrogate.network.network import Network
from surrogate.network.operators import with_default_math
from surrogate.network.runtime import HOSTS_FILE, RUNTIMES, LaunchCost, count_launches, with_runtime
from surrogate.prediction.sources.datasheet import FILE, HALVES, TF32
from surrogate.trace.iteration import times as kernel_times

FOLDER = HOME / "data" / "kernelbench"
CALLS = "calls.parquet"
NAMES = own_settings(__file__)
REPOSITORY = "github.com/ScalingIntelligence/KernelBench"
ORIGIN = f"{REPOSITORY}, results/timing, MIT"
LEVELS = ("level1", "level2", "level3")
PROGRAM = ["sizes", "level", "problem"]
START = {"start_us": 10.0, "tile_time": 0.5, "gathered_share": 0.25}
"""Start values of parameters that large batches do not determine."""
SHARED = ("start_us", "tile_time")
"""Parameters that half precision takes from TF32, because no small half-precision programs are published."""
KINDS = ("fast", "usual", "slow")
HOST_OF = {folder: kind for kind, folders in NAMES["hosts"].items() for folder in folders}
FIRST_US, FIRST_HOSTS = (4.0, 4.0, 4.0, 20.0), (2.5, 4.0)
"""Start values of a `LaunchCost`, and of the factors of hosts slower than the fast one."""


DEVICE_SHARE = 0.9
"""A program counts if its kernels take at least this share of its predicted time, on both GPUs."""


@cache
def measured() -> pd.DataFrame:
    """Return mean times of `LEVELS` on one GPU: `PROGRAM`, ``gpu runtime host measured_ms``, and True for training
    programs.

    Several files of a GPU and a host give the median.
    """
    table = pd.read_parquet(FOLDER / "baselines.parquet")
    folder, file = (table["file"].str.split("/").str[each] for each in (-2, -1))
    sizes = NAMES["sizes"]
    grown = (table["date"] >= sizes["grew"]) & ~table["commit"].isin(sizes["old_commits"])
    runtime = pd.Series(None, index=table.index, dtype=object)
    for end, name in NAMES["runtimes"].items():
        runtime[file.str.endswith(end)] = name
    table = table.assign(
        runtime=runtime,
        host=folder.map(HOST_OF).fillna("usual"),
        sizes=np.where(grown, "new", "old"),
        training=(table["level"] + "/" + table["problem"]).map(crc) % 2 == 0,
    )
    is_usable = table["hardware"].notna() & table["level"].isin(LEVELS) & runtime.notna() & (folder != "old")
    table = table[is_usable & ~table["commit"].isin(sizes["mixed_commits"])]
    table = table.assign(gpu=table["hardware"].map({name: gpu(name).name for name in table["hardware"].unique()}))
    keys = [*PROGRAM, "gpu", "runtime", "host", "training"]
    return table.groupby(keys)["mean_ms"].median().rename("measured_ms").reset_index()


def stored(call: Call) -> str:
    """Return a call as JSON; fields with their default values are left out.

    A tensor becomes an object of its fields. torch's element types and devices, which no rule reads, become texts.
    """
    return json.dumps(_to_json(call), separators=(",", ":"))


def restored(content: str) -> Call:
    """Return the call that `stored` wrote."""
    call = json.loads(content)
    arguments = {name: _from_json(value) for name, value in call["arguments"].items()}
    return Call(call["op"], arguments, tuple(map(_from_json, call.get("outputs", ()))), call.get("name", ""))


def _to_json(value: object) -> object:
    """Return a call, a tensor or an argument's value as a JSON value."""
    if isinstance(value, Call | Tensor):
        named = {each.name: (getattr(value, each.name), each.default) for each in fields(value)}
        return {name: _to_json(inner) for name, (inner, default) in named.items() if inner != default}
    if isinstance(value, Mapping):
        return {name: _to_json(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json(inner) for inner in value]
    if value is UNKNOWN:
        return {UNKNOWN.value: True}
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _from_json(value: Any) -> Any:
    """Return the tensor or the argument's value that `_to_json` wrote."""
    if isinstance(value, list):
        return [_from_json(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    if UNKNOWN.value in value:
        return UNKNOWN
    shape = value.get("shape")
    return Tensor(**{**value, "shape": None if shape is None else tuple(shape)})


@cache
def recorded() -> dict[tuple[str, ...], list[Call]]:
    """Return program → the ATen calls of its forward pass in order, as `experiments.program_calls` recorded them."""
    table = pd.read_parquet(FOLDER / CALLS)
    programs = table.groupby(PROGRAM, sort=False)["call"]
    return {tuple(map(str, key)): list(map(restored, calls)) for key, calls in programs}


@cache
def read(sizes: str, level: str, problem: str) -> Network | None:
    """Return the network of a program's forward pass, in training mode without gradients, as its harness runs it.

    None if the program was not recorded, or if one of its operators is unknown.
    """
    network = network_of(f"{level}/{problem}", recorded().get((sizes, level, problem), []))
    return network if network.layers and not network.unsupported else None


def passes() -> tuple[pd.DataFrame, list[Network]]:
    """Return the measured passes of the readable programs, and their networks."""
    table = measured()
    table = table[[read(*row) is not None for row in table[PROGRAM].to_numpy()]].reset_index(drop=True)
    runs = [(read(*(row[name] for name in PROGRAM)), row["runtime"], row["host"]) for row in table.to_dict("records")]
    return table, [with_runtime(network, runtime, host) for network, runtime, host in runs if network]


def rows() -> pd.DataFrame:
    """Return the passes of the held-out programs as the shipped constants predict them.

    There is one row per pass, with times in ms, and one set per runtime and level. Programs of a single convolution in
    TF32 are also a set of their own.
    """
    table, networks = passes()
    holdout = table[~table["training"]]
    kept = [network for network, trained in zip(networks, table["training"], strict=True) if not trained]
    times = [predictors_of(name).time(network) for name, network in zip(holdout["gpu"], kept, strict=True)]
    table = holdout.assign(phase="inference", set="small programs, " + holdout["runtime"] + ", " + holdout["level"])
    table = table.rename(columns={"problem": "network"}).drop(columns="training")
    for name in ("total", "lower", "upper", "kernels"):
        table[f"{'predicted' if name == 'total' else name}_ms"] = [getattr(time, f"{name}_us") / 1e3 for time in times]
    convolves = [len(network.layers) == 1 and network.layers[0].problem.HAS_ALGORITHMS for network in kept]
    single = table[np.array(convolves) & [gpu(name).tf32_tflops > 0 for name in table["gpu"]]]
    return pd.concat([table, single.assign(set="programs of one convolution in TF32")])


@dataclass(frozen=True, slots=True)
class Timed:
    """Passes with all inputs of their times.

    The inputs are the kernels for an analytical model of TF32's convolutions, (passes, 3) launches, and the (passes,)
    positions of their runtimes and kinds of hosts.
    """

    table: pd.DataFrame
    passes: Passes
    launches: np.ndarray
    runtime: np.ndarray
    host: np.ndarray

    def time_us(self, model: TensorCoreModel, constants: np.ndarray, hosts: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return the times (passes,), and their parts: the kernels' and the launches' times.

        ``constants`` (runtimes, 4) holds a `LaunchCost` per row. ``hosts`` (3,) are the factors of the kinds of hosts
        to the fast one.
        """
        kernels_us, slower, own = self.passes.kernels_us(model), hosts[self.host], constants[self.runtime]
        launch_us = slower * (own[:, :-1] * self.launches).sum(axis=1)
        return np.maximum(kernels_us, launch_us) + slower * own[:, -1], kernels_us, launch_us


class Fit(NamedTuple):
    """The arguments of `Timed.time_us`."""

    model: TensorCoreModel
    constants: np.ndarray
    hosts: np.ndarray


def fit(timed: Timed, taken: np.ndarray, start: TensorCoreModel) -> Fit:
    """Fit model and constants together, by robust least squares in log time over the ``taken`` passes.

    Both decide whether kernels or launches limit a pass, so a joint fit attributes each pass to its cause.
    """
    search, log_measured = Search.from_model(start), np.log(1e3 * timed.table["measured_ms"].to_numpy())
    shares, ends = len(search.names), len(RUNTIMES) * len(FIRST_US)
    first = np.concatenate([search.first, np.log(np.tile(FIRST_US, len(RUNTIMES))), np.log(FIRST_HOSTS)])
    weight = np.repeat([0.3, 0.05], [shares, len(first) - shares])
    upper = np.concatenate([search.upper, np.full(len(first) - shares, np.inf)])

    def unpacked(x: np.ndarray) -> Fit:
        values = np.exp(x[shares:])
        hosts = np.array([1.0, *values[ends:]])
        return Fit(search.model(x[:shares]), values[:ends].reshape(len(RUNTIMES), -1), hosts)

    def residuals(x: np.ndarray) -> np.ndarray:
        errors = np.log(timed.time_us(*unpacked(x))[0]) - log_measured
        return np.append(errors[taken], weight * (x - first))

    solution = least_squares(residuals, first, bounds=(-np.inf, upper), loss="soft_l1", f_scale=0.15, diff_step=0.01)
    best = unpacked(solution.x)
    constants, hosts = (np.array([float(f"{each:.3g}") for each in part.flat]) for part in best[1:])
    return Fit(rounded(best.model), constants.reshape(best.constants.shape), hosts)


def main() -> None:
    """Fit to the training half. A GPU's errors, which determine widths, come from a fit to the other GPUs."""
    models = json.loads((bundled.FOLDER / FILE).read_bytes())
    start = TensorCoreModel(**(models[HALVES]["law"] | START))
    table, networks = passes()
    launches = np.array([count_launches(network) for network in networks])
    stack = stacked(networks, [predictors_of(name) for name in table["gpu"]])
    kinds = [
        table[name].map(list(values).index).to_numpy() for name, values in (("runtime", RUNTIMES), ("host", KINDS))
    ]
    timed = Timed(table, stack, launches, *kinds)
    # The time of a convolution over three axes is a factor times the model over two axes. Nothing is fitted to it.
    is_plane = np.array([all(layer.time_factor == 1.0 for layer in network.layers) for network in networks])
    trained = table["training"].to_numpy() & is_plane
    measured_us = 1e3 * table["measured_ms"].to_numpy()
    error, is_launch, is_convolved = np.zeros(len(table)), np.zeros(len(table), bool), np.zeros(len(table), bool)
    for name in table["gpu"].unique():
        own = (table["gpu"] == name).to_numpy()
        time_us, kernels_us, launch_us = timed.time_us(*fit(timed, trained & ~own, start))
        error[own] = np.abs(np.log(time_us / measured_us))[own]
        is_launch[own] = (launch_us > kernels_us)[own]
        is_convolved[own] = ((kernels_us > launch_us) & (kernels_us > 2 * stack.others_us))[own]
    best = fit(timed, trained, start)
    judged = error[trained & is_convolved]
    names = sorted(table.loc[trained & is_convolved, "gpu"].unique())
    median, half_width = np.quantile(judged, [0.5, 0.9]).round(3).tolist()
    across = {"gpus": len(names), "median_ape": median, "half_width": half_width}
    models[HALVES]["law"] |= {name: getattr(best.model, name) for name in SHARED}
    models[TF32] = {"law": asdict(best.model), "fitted_on": names, "origin": ORIGIN, "by_kind": {"": across}}
    write_text(bundled.FOLDER / FILE, json.dumps(models, indent=1) + "\n")
    widths = [np.quantile(error[trained & is_launch & (timed.runtime == each)], 0.9) for each in range(len(RUNTIMES))]
    shipped = {
        "origin": ORIGIN,
        "hosts": dict(zip(KINDS, best.hosts.tolist(), strict=True)),
        "laws": {
            name: asdict(LaunchCost(*values, half_width=round(float(width), 3)))
            for name, values, width in zip(RUNTIMES, best.constants.tolist(), widths, strict=True)
        },
    }
    write_text(bundled.FOLDER / HOSTS_FILE, json.dumps(shipped, indent=1) + "\n")


def transfers() -> pd.DataFrame:
    """Return a row per transfer: kind and memories of the GPUs, |log error|, and the half width without `BOARD_FACTOR`.

    ``training`` is True for programs of the half that the factors are fitted to.
    """
    rows = []
    eager = measured().query("runtime == 'eager'").groupby([*PROGRAM, "training", "gpu"])["measured_ms"].min()
    for (*program, training), times_ms in eager.reset_index().groupby([*PROGRAM, "training"]):
        network, runs = read(*program), {}
        for name, time_ms in zip(times_ms["gpu"], times_ms["measured_ms"], strict=True) if network else ():
            assert network is not None
            problems = [with_default_math(layer.problem, gpu(name)) for layer in network.layers]
            answers = kernel_times.answers_of(predictors_of(name), set(problems))
            operators = [kernel_times.OperatorOnGpu.of(gpu(name), [problem], answers) for problem in problems]
            time = predictors_of(name).time(with_runtime(network, "eager", "usual"))
            if time.kernels_us >= DEVICE_SHARE * time.total_us and all(each.is_predicted for each in operators):
                runs[name] = 1e3 * time_ms, operators
        for (own, (own_us, before)), (target, (target_us, after)) in permutations(runs.items(), 2):
            shares = np.array([each.predicted_us for each in before])
            parts = list(map(kernel_times.transferred, own_us * shares / shares.sum(), [1] * len(after), before, after))
            stacked = sum(gpu(name).memory_bus_bits >= kernel_times.STACKED_BITS for name in (own, target))
            error = abs(log(sum(part.time_us for part in parts) / target_us))
            half_width = log(kernel_times.DeviceTimes(np.zeros(0), (), parts=tuple(parts)).factor_90)
            rows.append((training, kernel_times.pair_kind(gpu(own), gpu(target)), stacked, error, half_width))
    return pd.DataFrame(rows, columns=["training", "kind", "stacked", "error", "half_width"])


def judge_transfers() -> None:
    """Print the factor that holds 90 % of the training half by kind, and the coverage of the other half by group."""
    table = transfers()
    outside = table["error"].where(table["error"] > table["half_width"], 0.0)
    inside = 100.0 * (outside <= np.log(table["kind"].map(kernel_times.BOARD_FACTOR)))
    print(outside[table["training"]].groupby(table["kind"]).quantile(0.9).map(np.exp).rename("fitted factor").round(2))
    holdout = table.assign(inside_pct=inside, without_factor_pct=100.0 * (outside == 0))[~table["training"]]
    for groups in map(holdout.groupby, (["kind", "stacked"], ["training"])):
        print(groups[["inside_pct", "without_factor_pct"]].mean().round(1).assign(transfers=groups.size()))


if __name__ == "__main__":
    judge_transfers() if sys.argv[1:] == ["transfers"] else main()
