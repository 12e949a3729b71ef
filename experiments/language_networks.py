"""Measured steps of language models on eleven GPUs (PIPEWEAVE's runs), and the errors of published predictors.

The runs are SGLang's one-batch benchmark. All prompts of a workload are computed in one prefill, then one token at a
time by CUDA graphs. Its figures are the prefill's time and the median time of the decoded tokens. So the kernels are
SGLang's, and a decoded token is predicted at the middle of the output. The measured time is the median of five runs.
PIPEWEAVE's published table uses, for each predictor, the run that suits it best.

Two constants of the product are fitted on these runs: the energy of a FLOP at a board's power limit, from prefills, and
the gap between kernels, from decoded tokens (`tensor_pj_per_flop` of `surrogate.features.gpu`, `GAP_US` of
`surrogate.network.language_step`). Here, each GPU is predicted with the constants of the other GPUs; the energy comes
from others of its architecture. Nothing else is fitted on any run.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

import pandas as pd

from experiments.sources import DEFAULT_FOLDER
from surrogate import Predictor
from surrogate.features.gpu import Gpu, gpu
from surrogate.network import Network, load_predictors
from surrogate.network.language import Deployment
from surrogate.network.language_config import read_decoder
from surrogate.network.language_step import Requests, Step

PHASES = {"prefill": "prefill_latency", "decode": "median_decode_latency"}
"""Phase → the field of a run that contains its time in seconds."""
ENDS = ["predicted_ms", "lower_ms", "upper_ms"]


def language_networks(folder: Path = DEFAULT_FOLDER) -> pd.DataFrame:
    """Return a row per run and phase: ``network gpu tensor_parallel phase measured_ms predicted_ms lower_ms upper_ms``.

    Each published predictor has a further column in ms, for example ``pipeweave_ms``.
    """
    steps, rows = list(measured_steps(folder)), []
    energies: dict[tuple[str, str], list[float]] = {}
    for row, board, network in steps:
        if board.tensor_pj_per_flop and row["phase"] == "prefill" and row["tensor_parallel"] == 1:
            flops = sum(layer.problem.flops for layer in network.layers)
            picojoules = 1e9 * board.board_watts * row["measured_ms"] / flops
            energies.setdefault((board.architecture, row["gpu"]), []).append(picojoules)
    for row, board, network in steps:
        board_key = (board.architecture, row["gpu"])
        others = [fmean(values) for key, values in energies.items() if key[0] == board_key[0] and key != board_key]
        by = load_predictors(board.name, library="sglang")
        if board.tensor_pj_per_flop and others:
            changed = replace(board, tensor_pj_per_flop=fmean(others))
            bundle = replace(by.kernel_predictor.bundle, devices={board.name: changed})
            kernels = Predictor(bundle, gpu=board.name, library="sglang")
            by = replace(by, gpu=changed, kernel_predictor=kernels)
        time = by.time(network)
        ends = (time.total_us / 1e3, time.lower_us / 1e3, time.upper_us / 1e3)
        rows.append(row | dict(zip(ENDS, ends, strict=True)) | {"kernels": len(network.layers)})
    table = pd.DataFrame(rows)
    left = ((table["measured_ms"] - table["predicted_ms"]) / table["kernels"])[table["phase"] == "decode"]
    for name, part in table.groupby("gpu"):
        gap_ms = max(left[table["gpu"] != name].median(), 0.0) * part["kernels"]
        table.loc[part.index, ENDS] = part[ENDS].add(gap_ms, axis=0)
    gpus = table["tensor_parallel"].eq(1).map({True: "one GPU", False: "several GPUs"})
    return table.drop(columns="kernels").assign(set="llm, " + table["phase"] + ", " + gpus)


def grouped(requests: Sequence[tuple[int, int]]) -> list[Requests]:
    """Return the (new tokens, positions including them) of requests as groups of equal requests.

    Prompts and decoded tokens are separate groups. A group has the total work of its requests, because causal pairs
    grow with the square of a prompt.
    """
    groups = []
    for part in ([r for r in requests if r[0] > 1], [r for r in requests if r[0] == 1]):
        if part:
            new = round((sum(new**2 for new, _ in part) / len(part)) ** 0.5)
            before = round(sum(context - new for new, context in part) / len(part))
            groups.append(Requests(len(part), new, new + before))
    return groups


def measured_steps(folder: Path) -> Iterator[tuple[dict[str, Any], Gpu, Network]]:
    """Yield the fields of each run and phase, its GPU, and the computed network."""
    lengths: Any = pd.read_csv(folder / "pipeweave_lengths.csv", index_col="workload")
    table: Any = pd.read_csv(folder / "pipeweave_end_to_end.csv", dtype=str)
    for (name, ranks, model, workload), predictions in table.groupby(["Hardware", "TP", "Model", "Workload"]):
        path = folder / "pipeweave_runs" / f"e2e_{f'tp{ranks}_' if ranks != '1' else ''}{name}.jsonl"
        repeats = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        runs = [run for run in repeats if run["run_name"] == f"{model}-{workload}"]
        decoder = read_decoder(folder / "transformer_configs" / f"{model}.json")
        prompts, half = lengths.loc[workload, "prompt_tokens"].tolist(), runs[0]["output_len"] // 2
        for phase, field in PHASES.items():
            requests = [(n, n) if phase == "prefill" else (1, n + half) for n in prompts]
            how, tokens = Deployment(tensor_parallel=int(ranks)), sum(new for new, _ in requests)
            network = Step(decoder, grouped(requests), how, tokens).network
            row = {
                "network": f"{model}, {workload}",
                "gpu": name,
                "tensor_parallel": int(ranks),
                "phase": phase,
                "measured_ms": 1e3 * median(run[field] for run in runs),
            }
            published = zip(predictions["predictor"], predictions[f"pred_{phase}_ms"], strict=True)
            row |= {f"{predictor}_ms": float(time_ms) for predictor, time_ms in published}
            yield row, gpu(name.removesuffix("_S")), replace(network, gap_us=0.0)
