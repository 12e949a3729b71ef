"""Steps of language models, measured whole on eleven GPUs (PIPEWEAVE's runs), beside what published predictors say.

The runs are SGLang's one-batch benchmark: all prompts of a workload in one prefill, then one token for each at a time
by CUDA graphs; its figures are the prefill's time and the median of the decoded tokens'. So the kernels are SGLang's,
and a decoded token is taken half-way through the output. Measured is the median of five runs; the table that PIPEWEAVE
publishes takes, for each predictor, the run that suits it best.

The energy of a FLOP at a board's power limit (`surrogate.network.predict.PJ_PER_FLOP`) comes from these prefills: each
GPU is predicted with that of the others. Nothing else was fitted on any of them.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

import pandas as pd

from experiments.sources import DEFAULT_FOLDER
from surrogate.features.gpu import gpu
from surrogate.network.language import language_network, read_decoder
from surrogate.network.network import Network
from surrogate.network.predict import load_predictors

GPUS = {
    "A100": "a100-sxm4-80gb", "A40": "a40", "H100": "h100-sxm", "H20": "h20", "H200": "h200-sxm", "H800": "h800",
    "L20": "l20", "L40": "l40", "RTX_6000_Ada": "rtx-6000-ada", "RTX_A6000": "rtx-a6000",
    "RTX_PRO_6000_S": "rtx-pro-6000-server",
}  # fmt: skip
PHASES = {"prefill": "prefill_latency", "decode": "median_decode_latency"}
"""Phase → the field of a run that has its time in seconds."""
PREDICTED = ("predicted", "pipeweave", "neusight", "habitat", "linear", "roofline")


def language_networks(folder: Path = DEFAULT_FOLDER) -> pd.DataFrame:
    """A row per run and phase: ``network gpu tensor_parallel phase measured_ms predicted_ms lower_ms upper_ms``.

    Beside them a column in ms for each published predictor, as in ``pipeweave_ms``.
    """
    runs = list(_runs(folder))
    networks = [_network(folder, run) for run in runs]
    energies: dict[str, list[float]] = {}
    for run, network in zip(runs, networks, strict=True):
        watts, flops = gpu(GPUS[run["gpu"]]).watts, sum(layer.work.flops for layer in network.layers)
        if watts and run["phase"] == "prefill" and run["tensor_parallel"] == 1:
            energies.setdefault(run["gpu"], []).append(float(watts * run["measured_ms"] * 1e9 / flops))
    for run, network in zip(runs, networks, strict=True):
        others = [fmean(values) for name, values in energies.items() if name != run["gpu"]]
        by = load_predictors(GPUS[run["gpu"]], library="sglang")
        time = replace(by, pj_per_flop=fmean(others)).time(network)
        run |= {
            "predicted_ms": time.total_us / 1e3,
            "lower_ms": time.lower_us / 1e3,
            "upper_ms": time.upper_us / 1e3,
        }
    return pd.DataFrame(runs)


def _network(folder: Path, run: dict[str, Any]) -> Network:
    model, workload = run["network"].split(", ")
    lengths = pd.read_csv(folder / "pipeweave_lengths.csv").set_index("workload").loc[workload]
    prompts, half = lengths["prompt_tokens"].tolist(), int(lengths["output_tokens"].iloc[0]) // 2
    requests = [(n, n) if run["phase"] == "prefill" else (1, n + half) for n in prompts]
    decoder = read_decoder(folder / "transformer_configs" / f"{model}.json")
    return language_network(decoder, requests, tensor_parallel=run["tensor_parallel"])


def _runs(folder: Path) -> Iterator[dict[str, Any]]:
    """A row of `language_networks` per run and phase, without our own predictions."""
    table = pd.read_csv(folder / "pipeweave_end_to_end.csv", dtype=str).to_dict("records")
    names = ("Hardware", "TP", "Model", "Workload")
    for key in dict.fromkeys(tuple(row[name] for name in names) for row in table):
        name, ranks, model, workload = key
        path = folder / "pipeweave_runs" / f"e2e_{f'tp{ranks}_' if ranks != '1' else ''}{name}.jsonl"
        repeats = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        own = [one for one in repeats if one["run_name"] == f"{model}-{workload}"]
        said = [row for row in table if tuple(row[name] for name in names) == key]
        for phase, field in PHASES.items():
            yield {
                "network": f"{model}, {workload}", "gpu": name, "tensor_parallel": int(ranks), "phase": phase,
                "measured_ms": median(one[field] for one in own) * 1e3,
                **{f"{row['predictor']}_ms": float(row[f"pred_{phase}_ms"]) for row in said},
            }  # fmt: skip


def errors(table: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Mean and median |predicted / measured − 1| in percent of ours and of every published predictor, per group."""
    off = {name: 100 * (table[f"{name}_ms"] / table["measured_ms"] - 1).abs() for name in PREDICTED}
    return pd.DataFrame(off).groupby([table[name] for name in by]).agg(["mean", "median"]).round(1)


if __name__ == "__main__":
    found = language_networks()
    found["GPUs"] = found["tensor_parallel"].eq(1).map({True: "one", False: "several"})
    print(errors(found, ["GPUs", "phase"]).T.to_string())
    print(errors(found, ["GPUs", "phase", "gpu"])[["predicted", "pipeweave"]].to_string())
