"""How far off are predicted servers of language models, with the model's family left out of every constant?

Measured servers of vLLM, SGLang and TensorRT-LLM from ai-dynamo/aiconfigurator's sample (in the package
aiconfigurator-core, with the models' configurations), aggregated ones: prefill and decoding on the same GPUs. Two
constants a framework are fitted (`surrogate.network.serving`), on one half of the families, and judged on the other,
and so are the widths of intervals; families are dealt out in the order of a hash of their names. ``--store`` writes
those of all families.

How the sample's rows are read:

- A checkpoint computes in what its own configuration says where the row's type is of the same width: fp8 in blocks or
  not, mxfp4 experts. TensorRT-LLM's quantised checkpoints keep the cache in fp8, as their maker's configurations do.
- Where more GPUs are named than a node has, and as many ways of tensor and expert parallelism, the product of both was
  written in the place of the GPUs: 64 means 8 of which each holds other experts. Likewise with data-parallel attention.
- A model that does not fit, or cannot be divided so, is not judged.
"""

import json
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from zlib import crc32

import click
import numpy as np
import pandas as pd
from scipy.optimize import minimize

from experiments.aiconfigurator_answers import systems_folder
from experiments.experiment import HOME
from experiments.sources import beside
from surrogate import InputError, bundled, gpu
from surrogate.dataset.files import write_text
from surrogate.models.plain import to_plain
from surrogate.network.checkpoint import Checkpoint
from surrogate.network.deployment import DOMAINS, NODE, Deployment, main_dtype
from surrogate.network.language import Decoder, read_decoder
from surrogate.network.serving import FILE, Load, ServerKernels, ServerLaw, ServerLaws, ServerSteps, Setup, server_steps

NAMES = beside(__file__)
FLOAT4 = "w4a8_mxfp4_mxfp8"
"""What TensorRT-LLM computes mxfp4 experts in where the GPU has fp4 units."""
TAIL = 0.03
"""Left out at either side of an interval: families that were not seen lie further off than those seen do."""
LEAST_GROUP = 5
"""Configurations whose order is judged."""
ORIGIN = "github.com/ai-dynamo/aiconfigurator, systems/silicon_sample.csv of aiconfigurator-core 0.12.0, Apache-2.0"


class Row(NamedTuple):
    """A measured server."""

    decoder: Decoder
    gpu: str
    library: str
    setup: Setup
    load: Load


def halves(families: list[str]) -> dict[str, int]:
    """Family → the half that it is in: dealt out in the order of a hash of the names."""
    return {name: index % 2 for index, name in enumerate(sorted(families, key=lambda name: crc32(name.encode())))}


def read_sample(systems: Path) -> pd.DataFrame:
    """The aggregated rows: ``model family gpu library precision input output users ttft_ms tpot_ms row``."""
    table = pd.read_csv(systems / "silicon_sample.csv")
    table = table[table["mode"] == "agg"].reset_index(drop=True)
    stated = table["silicon_data_source"].str.extract(r"silicon_concurrency=(\d+)")[0].astype(float)
    table["users"] = stated.fillna(table["batch_size"]).astype(int)
    models = NAMES["models"]
    return pd.DataFrame({
        "id": table["id"], "model": table["model_path"], "family": [models[name][1] for name in table["model_path"]],
        "gpu": table["system"].map(NAMES["gpus"]), "library": table["backend"],
        "precision": table["precision"].fillna("bf16"), "input": table["isl"], "output": table["osl"],
        "users": table["users"], "batch": table["batch_size"], "gemm": table["gemm_quant_mode"].fillna(""),
        "moe": table["moe_quant_mode"].fillna(""), "system": table["system"],
        "ttft_ms": table["silicon_ttft_ms"], "tpot_ms": table["silicon_tpot_ms"],
        "row": [_row(entry, systems.parent / "model_configs") for _, entry in table.iterrows()],
    })  # fmt: skip


def _row(entry: Any, configs: Path) -> Row:
    name = NAMES["gpus"][entry.system]
    decoder = _decoder(configs / f"{NAMES['models'][entry.model_path][0]}_config.json")
    own = main_dtype(decoder, None)
    dtype = _dtype(entry, own)
    if own.startswith("w4a16"):  # its attention is not quantised, whatever the row says
        dtype = None
        if entry.backend == "trtllm" and gpu(name).fp4_tensor_tflops:
            decoder = replace(decoder, checkpoint=_in(decoder.checkpoint, FLOAT4))
    is_cached_in_fp8 = entry.backend == "trtllm" and (dtype or own) not in ("bf16", "w4a16_mxfp4")
    deployment = _deployment(entry, DOMAINS.get(name, NODE), bool(decoder.experts))
    deployment = replace(deployment, dtype=dtype, kv_dtype="fp8" if is_cached_in_fp8 else None)
    return Row(decoder, name, entry.backend, Setup(deployment, int(entry.users)), Load(int(entry.isl), int(entry.osl)))


@cache
def _decoder(path: Path) -> Decoder:
    return read_decoder(path)


def _in(checkpoint: Checkpoint, dtype: str) -> Checkpoint:
    """The same products in another type."""
    rules = tuple((names, dtype) for names, _ in checkpoint.read.rules)
    return replace(checkpoint, read=checkpoint.read._replace(rules=rules))


def _dtype(entry: Any, own: str) -> str | None:
    """The arithmetic of a row's products; None for the checkpoint's ``own``."""
    stated = entry.gemm_quant_mode
    if not isinstance(stated, str):
        return "bf16" if own != "bf16" else None
    is_own = stated == own or (stated == "fp8" and own == "fp8_block")
    is_block = stated == "fp8" and entry.moe_quant_mode == "fp8_block"
    return None if is_own else "fp8_block" if is_block else stated


def _deployment(entry: Any, node: int, routes: bool) -> Deployment:
    def count(name: str) -> int:
        return int(entry[name]) if entry[name] > 0 else 1

    tensor, data, expert = count("tp_size"), count("attention_dp_size"), count("moe_ep_size")
    if node == NODE and tensor * data > node and count("moe_tp_size") == expert:
        tensor, data = (expert, 1) if data == 1 else (1, expert)
    elif data > 1 and tensor == data and expert == tensor * data:
        tensor, expert = 1, data
    expert = min(expert, tensor * data) if routes else 1
    return Deployment(tensor_parallel=tensor, data_parallel=data, expert_parallel=expert, node=node)


def predict_steps(sample: pd.DataFrame) -> pd.DataFrame:
    """The sample with ``steps`` (None: refused) and ``refused``, why."""
    steps: dict[Any, ServerSteps | None] = {}
    refused: dict[Any, str] = {}
    kernels = {name: ServerKernels(gpu(name)) for name in sample["gpu"].unique()}
    for index in sample.groupby(["gpu", "library", "model", "input", "output"]).groups.values():
        rows = sample.loc[index, "row"]
        for decoder in dict.fromkeys(row.decoder for row in rows):
            own = rows[[row.decoder == decoder for row in rows]]
            first = own.iloc[0]
            answers = server_steps(decoder, first.load, kernels[first.gpu], first.library, [row.setup for row in own])
            for label, row in own.items():
                answer = answers[row.setup]
                is_step = isinstance(answer, ServerSteps)
                steps[label] = answer if is_step and answer.fits else None
                refused[label] = "" if is_step and answer.fits else "does not fit" if is_step else str(answer)
    return sample.assign(steps=pd.Series(steps), refused=pd.Series(refused))


def fitted(rows: pd.DataFrame) -> ServerLaw:
    """The law of some families' rows of one framework, each family with the weight of the root of its rows."""
    weights = _weights(rows)
    measured = np.log(rows["ttft_ms"].to_numpy())
    # A first token's time is a line in both constants.
    alone_ms = np.array([steps.ttft_ms(0.0, 0.0) for steps in rows["steps"]])
    others_ms = np.array([steps.ttft_ms(0.0, 1.0) for steps in rows["steps"]]) - alone_ms

    def errors(constants: np.ndarray) -> np.ndarray:
        start_ms, share = np.abs(constants)
        return measured - np.log(start_ms + alone_ms + share * others_ms)

    def loss(constants: np.ndarray) -> float:
        return float(np.sum(weights * np.hypot(errors(constants), 0.02)))

    constants = np.abs(minimize(loss, [50.0, 0.1], method="Nelder-Mead", options={"xatol": 1e-3}).x)
    further = np.log(rows["tpot_ms"].to_numpy() / [steps.tpot_ms for steps in rows["steps"]])
    ends = (_ends(each, weights) for each in (errors(constants), further))
    return ServerLaw(*constants.round(3).tolist(), *ends)


def _weights(rows: pd.DataFrame) -> np.ndarray:
    return 1 / np.sqrt(rows.groupby("family")["ttft_ms"].transform("size").to_numpy())


def _ends(errors: np.ndarray, weights: np.ndarray) -> tuple[float, float]:
    """How far, in log time, measured times lie below and above the predicted ones, but for a tail at either side."""
    order = np.argsort(errors)
    share = np.cumsum(weights[order]) / weights.sum()
    low, high = np.interp([TAIL, 1 - TAIL], share, errors[order])
    return round(max(-low, 0.0), 3), round(max(high, 0.0), 3)


def judged(sample: pd.DataFrame) -> pd.DataFrame:
    """The rows that can be said, each with the times by the law of the other half: columns as in `Interval`."""
    rows = sample[sample["steps"].notna()].copy()
    half = rows["family"].map(halves(sorted(sample["family"].unique())))
    parts = []
    for (_, side), part in rows.groupby([rows["library"], half]):
        library = part["library"].iloc[0]
        law = fitted(rows[(rows["library"] == library) & (half != side)])
        intervals = [steps.intervals(law) for steps in part["steps"]]
        for place, word in enumerate(("ttft", "tpot")):
            ends = np.array([pair[place] for pair in intervals])
            part = part.assign(**{f"{word}_{name}": ends[:, i] for i, name in enumerate(("predicted", "low", "high"))})
        parts.append(part)
    return pd.concat(parts).sort_index()


def peer(rows: pd.DataFrame, python: str) -> pd.DataFrame:
    """aiconfigurator's own times of the same rows, NaN where it refuses: ``ttft_ms tpot_ms``."""
    configs = {name: file.replace("--", "/", 1) for name, (file, _) in NAMES["models"].items()}
    deployments = [row.setup.deployment for row in rows["row"]]
    asked = rows[["system", "gemm", "moe", "batch", "input", "output"]].assign(
        backend=rows["library"], model=rows["model"].map(configs),
        tensor=[each.tensor_parallel for each in deployments], data=[each.data_parallel for each in deployments],
        expert=[each.expert_parallel for each in deployments],
    )  # fmt: skip
    with TemporaryDirectory() as folder:
        questions, answers = Path(folder) / "questions.parquet", Path(folder) / "answers.parquet"
        asked.astype({"batch": int}).to_parquet(questions)
        command = [python, str(HOME / "serving_queries.py"), str(questions), str(answers)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise InputError(f"{python}: {(done.stderr.strip().splitlines() or ['no answer'])[-1]}")
        return pd.read_parquet(answers).set_index(rows.index)


def beside_peer(rows: pd.DataFrame) -> dict[str, float]:
    """Median errors of aiconfigurator and of ours on the rows that it answers."""
    both = rows[rows["peer_tpot_ms"].notna()]
    errors = {"peer_n": float(len(both))}
    for word in ("tpot", "ttft"):
        measured = both[f"{word}_ms"]
        errors[f"{word}_peer"] = (both[f"peer_{word}_ms"] / measured - 1).abs().median()
        errors[f"{word}_same_rows"] = (both[f"{word}_predicted"] / measured - 1).abs().median()
    return errors


def scores(rows: pd.DataFrame, word: str) -> dict[str, float]:
    """Errors of one of both times, how often intervals hold, and the order of configurations."""
    measured, predicted = rows[f"{word}_ms"], rows[f"{word}_predicted"]
    error = (predicted / measured - 1).abs()
    holds = measured.between(rows[f"{word}_low"], rows[f"{word}_high"])
    # Of each workload, so that its length does not make the order.
    groups = rows.groupby(["model", "gpu", "library", "precision", "input", "output"])
    columns = [f"{word}_ms", f"{word}_predicted"]
    ranks = [part[columns].rank().corr().to_numpy()[0, 1] for _, part in groups if len(part) >= LEAST_GROUP]
    return {
        f"{word}_median": error.median(), f"{word}_p90": error.quantile(0.9),
        f"{word}_ratio": float((predicted / measured).median()), f"{word}_holds": holds.mean(),
        f"{word}_rank": float(np.median(ranks)) if ranks else float("nan"),
    }  # fmt: skip


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """A line for all, each framework, framework × GPU, and framework × family."""
    cuts: list[tuple[str, ...]] = [(), ("library",), ("library", "gpu"), ("library", "family")]
    lines = []
    for cut in cuts:
        for key, part in rows.groupby(list(cut)) if cut else [((), rows)]:
            named = {"library": "all", "gpu": "all", "family": "all"} | dict(zip(cut, key, strict=True))
            floors = float(np.mean([bool(steps.floors) for steps in part["steps"]]))
            errors = {**scores(part, "tpot"), **scores(part, "ttft"), "floors": floors, **beside_peer(part)}
            lines.append({**named, "n": len(part), **errors})
    return pd.DataFrame(lines)


def store(rows: pd.DataFrame) -> None:
    """Write the laws of all families; the widths are those of the rows that were held out."""
    laws = {}
    for library, part in rows.groupby("library"):
        weights = _weights(part)
        ends = {
            word: _ends(np.log((part[f"{word}_ms"] / part[f"{word}_predicted"]).to_numpy()), weights)
            for word in ("ttft", "tpot")
        }
        laws[str(library)] = replace(fitted(part), **ends)
    text = json.dumps(to_plain(ServerLaws(ORIGIN, laws)), indent=1)
    write_text(bundled.FOLDER / FILE, f"{text}\n")


@click.command(help=__doc__.splitlines()[0] if __doc__ else "")
@click.option("--aiconfigurator-python", "python", default=sys.executable, help="Interpreter with its package.")
@click.option("--store", "stores", is_flag=True, help="Write the constants of all families for the product.")
def main(python: str, stores: bool) -> None:
    """Print and store the table."""
    sample = predict_steps(read_sample(systems_folder(python)))
    rows = judged(sample)
    rows = rows.join(peer(rows, python).add_prefix("peer_"))
    if stores:
        store(rows)
    table = summary(rows)
    table.round(3).to_csv(HOME / "tables" / "serving.csv", index=False)
    click.echo(table.round(3).to_string(index=False))
    refused = sample["refused"].value_counts()
    click.echo(f"{len(sample)} rows, {len(rows)} of them said; refused: {dict(refused[refused.index != ''])}")


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        sys.exit(str(error))
