"""Errors of predicted servers of language models. The model's family is held out of every fitted constant.

The measured servers of vLLM, SGLang and TensorRT-LLM are ai-dynamo/aiconfigurator's sample, each counted once. It is
part of the package aiconfigurator-core, with the models' configurations. Only aggregated servers are used: prefill and
decoding on the same GPUs. The constants of first tokens (`surrogate.network.serving`) are judged on each family in
turn, with that family held out of the fit. The published servers of a framework delay first tokens by further
steps. The product's times do not have these steps; ``ttft_delayed`` has them.

The width of an interval contains the times of the other families, each with constants from its other families. Widths
are computed over all frameworks together, because one framework has too few families to show the error of a further
one. ``--store`` writes the constants of all families.

How the sample's rows are read:

- A checkpoint computes in the types of its own configuration if the row's type has the same width: fp8 in blocks or
  not, mxfp4 experts. TensorRT-LLM's quantised checkpoints keep the cache in fp8, like their publisher's configurations.
- If a row names more GPUs than a node has, and as many ranks of tensor and expert parallelism, then the product of both
  was written instead of the number of GPUs. 64 means 8 GPUs with different experts each. The same holds for
  data-parallel attention.
- vLLM and SGLang do not load parts of fp8 blocks. If a row names such parts, its GPUs have different experts instead.
- A model that does not fit, or that cannot be divided in this way, is not judged.
"""

import json
import sys
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
import pandas as pd
from scipy.optimize import minimize

from experiments.aiconfigurator_answers import run_script, systems_folder
from experiments.experiment import HOME
from experiments.sources import own_settings
from surrogate import InputError, gpu
from surrogate.dataset.files import write_text
from surrogate.features.elementwise import ceil_div
from surrogate.models.json_types import to_json_types
from surrogate.network.language import NVLINK_DOMAINS, NVLINK_GPUS, Decoder, Deployment
from surrogate.network.language_config import read_decoder
from surrogate.network.language_step import GAP_US, Requests, Step
from surrogate.network.predict import SERVERS
from surrogate.network.serving import Load, ServerKernels, ServerModel, ServerSteps, Setup, server_steps
from surrogate.network.serving_search import FP8_BLOCK

NAMES = own_settings(__file__)
FLOAT4 = "w4a8_mxfp4_mxfp8"
"""Arithmetic of TensorRT-LLM's mxfp4 experts on GPUs with fp4 units."""
TAIL = 0.05
"""Share of the errors outside the interval on each side."""
LATEST = {"ttft": "ttft_delayed", "tpot": "tpot_predicted"}
"""Time → column from which its interval's upper end is measured."""
RESTARTS = 3
"""Starts of a fit, each at the result of the one before."""
USERS = (2, 4, 8, 16, 64)
"""Ends of the groups of servers by the number of running requests."""
MIN_GROUP = 5
"""Minimum number of configurations whose order is judged."""
ORIGIN = "github.com/ai-dynamo/aiconfigurator, systems/silicon_sample.csv of aiconfigurator-core 0.12.0, Apache-2.0"


class Row(NamedTuple):
    """A measured server."""

    decoder: Decoder
    gpu: str
    library: str
    setup: Setup
    load: Load


def read_sample(systems: Path) -> pd.DataFrame:
    """Return the aggregated rows: ``model family gpu library precision input output users ttft_ms tpot_ms row``."""
    table = pd.read_csv(systems / "silicon_sample.csv")
    table = table[table["mode"] == "agg"].reset_index(drop=True)
    stated = table["silicon_data_source"].str.extract(r"silicon_concurrency=(\d+)")[0].astype(float)
    table["users"] = stated.fillna(table["batch_size"]).astype(int)
    models = NAMES["models"]
    sample = pd.DataFrame(
        {
            "id": table["id"],
            "model": table["model_path"],
            "family": [models[name][1] for name in table["model_path"]],
            "gpu": table["system"].map(NAMES["gpus"]),
            "library": table["backend"],
            "precision": table["precision"].fillna("bf16"),
            "input": table["isl"],
            "output": table["osl"],
            "users": table["users"],
            "batch": table["batch_size"],
            "gemm": table["gemm_quant_mode"].fillna(""),
            "moe": table["moe_quant_mode"].fillna(""),
            "system": table["system"],
            "ttft_ms": table["silicon_ttft_ms"],
            "tpot_ms": table["silicon_tpot_ms"],
            "row": [_row(entry, systems.parent / "model_configs") for _, entry in table.iterrows()],
        }
    )
    return sample.drop_duplicates(["gpu", "library", "ttft_ms", "tpot_ms"])  # several sources have the same measurement


def _row(entry: Any, configs: Path) -> Row:
    name = NAMES["gpus"][entry.system]
    decoder = _decoder(configs / f"{NAMES['models'][entry.model_path][0]}_config.json")
    own = decoder.main_dtype(None)
    dtype = _dtype(entry, own)
    if own.startswith("w4a16"):  # its attention is not quantised, even if the row says so
        dtype = None
        if entry.backend == "trtllm" and gpu(name).fp4_tensor_tflops:
            decoder = replace(decoder, checkpoint=decoder.checkpoint.with_types({own: FLOAT4}))
    is_cached_in_fp8 = entry.backend == "trtllm" and (dtype or own) not in ("bf16", "w4a16_mxfp4")
    deployment = _deployment(entry, NVLINK_DOMAINS.get(name, NVLINK_GPUS), bool(decoder.experts))
    deployment = replace(deployment, dtype=dtype, kv_dtype="fp8" if is_cached_in_fp8 else None)
    parts = deployment.ranks // deployment.expert_parallel
    is_split = entry.backend != "trtllm" and decoder.expert_inter % (FP8_BLOCK * parts)
    if is_split and decoder.main_dtype(dtype) == "fp8_block":
        deployment = replace(deployment, expert_parallel=deployment.ranks)
    return Row(decoder, name, entry.backend, Setup(deployment, int(entry.users)), Load(int(entry.isl), int(entry.osl)))


@cache
def _decoder(path: Path) -> Decoder:
    return read_decoder(path)


def _dtype(entry: Any, own: str) -> str | None:
    """Return the arithmetic of a row's products; None for the checkpoint's ``own``."""
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
    if node == NVLINK_GPUS and tensor * data > node and count("moe_tp_size") == expert:
        tensor, data = (expert, 1) if data == 1 else (1, expert)
    elif data > 1 and tensor == data and expert == tensor * data:
        tensor, expert = 1, data
    expert = min(expert, tensor * data) if routes else 1
    return Deployment(tensor_parallel=tensor, data_parallel=data, expert_parallel=expert, node=node)


def predict_steps(sample: pd.DataFrame) -> pd.DataFrame:
    """Return the sample with ``steps`` (None if refused) and ``refused``, the reason."""
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


def fitted(rows: pd.DataFrame) -> dict[str, ServerModel]:
    """Return framework → model of the rows, without widths. A family's weight is the square root of its rows."""
    weights = _weights(rows)
    measured = np.log(rows["ttft_ms"].to_numpy())
    libraries, numbers = np.unique(rows["library"], return_inverse=True)
    # The time to first token is linear in the constants.
    alone_ms = np.array([steps.ttft_ms(0.0, 0.0) for steps in rows["steps"]])
    others_ms = np.array([steps.ttft_ms(0.0, 1.0) for steps in rows["steps"]]) - alone_ms
    step_ms = np.array([steps.waited_step_ms for steps in rows["steps"]])

    def loss(constants: np.ndarray) -> float:
        share, *waits = np.abs(constants)
        predicted = alone_ms + share * others_ms + np.array(waits)[numbers] * step_ms
        return float(np.sum(weights * np.hypot(measured - np.log(predicted), 0.02)))

    constants = np.array([0.1] + [10.0] * len(libraries))
    for _ in range(RESTARTS):
        constants = np.abs(minimize(loss, constants, method="Nelder-Mead", options={"xatol": 1e-3}).x)
    share, *waits = constants.round(3).tolist()
    start = min(waits)
    delays = {str(library): round(wait - start, 3) for library, wait in zip(libraries, waits, strict=True)}
    return {name: ServerModel(start, share, steps, ttft=(0.0, 0.0), tpot=(0.0, 0.0)) for name, steps in delays.items()}


def _weights(rows: pd.DataFrame) -> np.ndarray:
    return 1 / np.sqrt(rows.groupby(["library", "family"])["ttft_ms"].transform("size").to_numpy())


def _predicted(rows: pd.DataFrame, models: dict[str, ServerModel]) -> pd.DataFrame:
    """Return the rows with both times, in columns as in `Interval`, and ``ttft_delayed``, with the delay."""
    laws = [models[library] for library in rows["library"]]
    pairs = list(zip(rows["steps"], laws, strict=True))
    times = np.array([steps.intervals(law) for steps, law in pairs])
    names = enumerate(("predicted", "low", "high"))
    columns = {f"{word}_{name}": times[:, i, j] for j, name in names for i, word in enumerate(LATEST)}
    delayed = [steps.ttft_ms(law.start_steps + law.delay_steps, law.share) for steps, law in pairs]
    return rows.assign(**columns, ttft_delayed=delayed)


def _gaps_ms(row: Row, steps: ServerSteps) -> float:
    """Return the time between the kernels of a decode step, as in SGLang's benchmark of one batch."""
    batch = ceil_div(steps.running, steps.stages)
    step = Step(row.decoder, [Requests(batch, 1, row.load.input)], row.setup.deployment, batch)
    return GAP_US * step.kernel_counts().total() / 1e3


def _left_out(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with both times, predicted by constants of the other families."""
    families = rows.groupby("family")
    return pd.concat([_predicted(own, fitted(rows[rows["family"] != family])) for family, own in families])


def _widths(rows: pd.DataFrame) -> dict[str, tuple[float, float]]:
    """Return log distances of measured times below the predicted and above the delayed times of `_left_out`.

    A tail on each side is outside.
    """
    rows, widths = _left_out(rows), {}
    weights = _weights(rows)
    for word in LATEST:
        ends = []
        for name, share in ((f"{word}_predicted", TAIL), (LATEST[word], 1 - TAIL)):
            errors = np.log((rows[f"{word}_ms"] / rows[name]).to_numpy())
            order = np.argsort(errors)
            ends.append(float(np.interp(share, np.cumsum(weights[order]) / weights.sum(), errors[order])))
        widths[word] = round(max(-ends[0], 0.0), 3), round(max(ends[1], 0.0), 3)
    return widths


def _models(rows: pd.DataFrame) -> dict[str, ServerModel]:
    """Return the models of the rows, with widths."""
    widths = _widths(rows)
    return {library: replace(model, **widths) for library, model in fitted(rows).items()}


def judged(sample: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with predictions, each with the times by a model that was fitted without its family."""
    rows = sample[sample["steps"].notna()]
    rows = rows.assign(gaps_ms=[_gaps_ms(*pair) for pair in zip(rows["row"], rows["steps"], strict=True)])
    families = rows.groupby("family")
    return pd.concat(
        [_predicted(own, _models(rows[rows["family"] != family])) for family, own in families]
    ).sort_index()


def peer(rows: pd.DataFrame, python: str) -> pd.DataFrame:
    """Return aiconfigurator's own times of the same rows, ``ttft_ms tpot_ms``, NaN if it refuses."""
    configs = {name: file.replace("--", "/", 1) for name, (file, _) in NAMES["models"].items()}
    deployments = [row.setup.deployment for row in rows["row"]]
    questions = rows[["system", "gemm", "moe", "batch", "input", "output"]].assign(
        backend=rows["library"],
        model=rows["model"].map(configs),
        tensor=[each.tensor_parallel for each in deployments],
        data=[each.data_parallel for each in deployments],
        expert=[each.expert_parallel for each in deployments],
    )
    answers, _ = run_script(python, "serving_queries.py", questions.astype({"batch": int}))
    return answers.set_index(rows.index)


def beside_peer(rows: pd.DataFrame) -> dict[str, float]:
    """Return the median errors of aiconfigurator and of this package on the rows that aiconfigurator answers."""
    both = rows[rows["peer_tpot_ms"].notna()]
    errors = {"peer_n": float(len(both))}
    for word in ("tpot", "ttft"):
        measured = both[f"{word}_ms"]
        errors[f"{word}_peer"] = (both[f"peer_{word}_ms"] / measured - 1).abs().median()
        errors[f"{word}_same_rows"] = (both[f"{word}_predicted"] / measured - 1).abs().median()
    return errors


def scores(rows: pd.DataFrame, word: str) -> dict[str, float]:
    """Return the errors of one of both times, the coverage of its intervals, and the quality of the order."""
    measured, predicted = rows[f"{word}_ms"], rows[f"{word}_predicted"]
    error = (predicted / measured - 1).abs()
    holds = measured.between(rows[f"{word}_low"], rows[f"{word}_high"])
    # Each workload is ranked alone, so that its length does not determine the order.
    groups = rows.groupby(["model", "gpu", "library", "precision", "input", "output"])
    columns = [f"{word}_ms", f"{word}_predicted"]
    ranks = [part[columns].rank().corr().to_numpy()[0, 1] for _, part in groups if len(part) >= MIN_GROUP]
    return {
        f"{word}_median": error.median(),
        f"{word}_p90": error.quantile(0.9),
        f"{word}_ratio": float((predicted / measured).median()),
        f"{word}_holds": holds.mean(),
        f"{word}_width": (rows[f"{word}_high"] / rows[f"{word}_low"]).median() ** 0.5,
        f"{word}_rank": float(np.median(ranks)) if ranks else float("nan"),
    }


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row for all, and for each framework, number of users, GPU and family.

    ``tpot_gaps_ratio`` is the ratio of TPOT if the kernels of a step had the gaps of ``seer network``.
    """
    cuts: list[tuple[str, ...]] = [
        (),
        ("library",),
        ("users",),
        ("library", "users"),
        ("library", "gpu"),
        ("library", "family"),
    ]
    numbers = [steps.running for steps in rows["steps"]]
    labels = [*(f"{low + 1} to {high}" for low, high in pairwise((0, *USERS))), f"over {USERS[-1]}"]
    rows = rows.assign(users=pd.cut(numbers, [0, *USERS, np.inf], labels=labels))
    lines = []
    for cut in cuts:
        for key, part in rows.groupby(list(cut), observed=True) if cut else [((), rows)]:
            labels = {"library": "all", "gpu": "all", "family": "all", "users": "all"} | dict(
                zip(cut, key, strict=True)
            )
            delayed = (part["ttft_delayed"] / part["ttft_ms"] - 1).abs().median()
            errors = {**scores(part, "tpot"), **scores(part, "ttft"), "ttft_delayed": delayed, **beside_peer(part)}
            errors["tpot_gaps_ratio"] = ((part["tpot_predicted"] + part["gaps_ms"]) / part["tpot_ms"]).median()
            floors = float(np.mean([bool(steps.floored_problems) for steps in part["steps"]]))
            lines.append({**labels, "n": len(part), **errors, "floors": floors})
    return pd.DataFrame(lines)


def store(rows: pd.DataFrame) -> None:
    """Write the models of all frameworks, fitted to all families."""
    stored = json.loads(SERVERS.read_bytes())
    text = json.dumps({**stored, "origin": ORIGIN, "laws": to_json_types(_models(rows))}, indent=1)
    write_text(SERVERS, f"{text}\n")


@click.command(help=__doc__.splitlines()[0] if __doc__ else "")
@click.option(
    "--aiconfigurator-python", "python", default=sys.executable, help="Interpreter with aiconfigurator's package."
)
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
    click.echo(f"{len(sample)} rows, {len(rows)} with predictions; refused: {dict(refused[refused.index != ''])}")
    sooner = sum(ms < steps.min_tpot_ms for ms, steps in zip(rows["tpot_ms"], rows["steps"], strict=True))
    click.echo(f"time per output token below the roofline: {sooner} rows")


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        sys.exit(str(error))
