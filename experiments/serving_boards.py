"""Errors of steps and servers of language models on boards whose kernels were never measured.

A board is predicted in two ways. As it is: seven of the boards of PIPEWEAVE's runs have no measured kernels. Or with
its architecture held out: the trees of all kernels are fitted again without the boards of the architecture, and no
measured times of these boards are used.

``--store`` writes the half width of an unmeasured step: the 90 % quantile of the errors of PIPEWEAVE's steps, with
equal weights of the boards. Each board is judged with the half width of the other boards. Servers of
`experiments.serving` were not in the fit of the half width.
"""

import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import click
import numpy as np
import pandas as pd

from experiments.experiment import HOME
from experiments.fit_bundles import PLANS
from experiments.language_networks import measured_steps
from experiments.serving import predict_steps, read_sample, scores, systems_folder
from experiments.sources import DEFAULT_FOLDER
from surrogate import InputError, bundled, gpu
from surrogate.bundle.bundle import Bundle
from surrogate.bundle.train import candidate_keys, new_model, row_counts
from surrogate.dataset.files import write_text
from surrogate.dataset.problems import device_names
from surrogate.dataset.rows import rows_of
from surrogate.features.families import FAMILIES, Operator
from surrogate.models import Support
from surrogate.network.predict import SERVERS, unmeasured_half_width
from surrogate.network.serving import ServerKernels, server_models
from surrogate.prediction import shipped
from surrogate.uncertainty.domain import Domain

ARCHITECTURES = ("ampere-ga100", "ada", "hopper", "blackwell-gb100", "blackwell-gb20x")
KERNELS = {name: plan for name, plan in PLANS.items() if name.startswith("language_")}
FIT_ROWS = 160_000
"""Rows of a family's sample; half of them, or fewer, are the training rows of a fit."""
SMALLER_FIT = {"rounds": 150, "max_leaves": 128}
PHASES = {"decode": "tpot", "prefill": "ttft"}
WIDTHS = ("half_width", "prompt_half_width")
COVERAGE = 0.9


def refitted_models() -> dict[str, dict[str, Bundle]]:
    """Return architecture → bundle → its content, fitted without the boards of the architecture."""
    bundles: dict[str, dict[str, Bundle]] = {name: {} for name in ARCHITECTURES}
    for name, plan in KERNELS.items():
        family = FAMILIES[plan.family]
        frame = plan.dataset(DEFAULT_FOLDER).frame
        rows = rows_of(frame.sample(min(FIT_ROWS, len(frame)), random_state=0), family, {})
        boards, position = np.unique(device_names(rows.frame).astype(str), return_inverse=True)
        architecture = np.array([gpu(board).architecture for board in boards])[position]
        old = shipped.load_bundle(bundled.FOLDER / name)
        for each in ARCHITECTURES:
            train = rows.take(np.flatnonzero(architecture != each))
            model = new_model(plan.model, {**plan.params, **SMALLER_FIT}, 0).for_unmeasured_gpu()
            model.fit(train.take(np.arange(len(train))[: FIT_ROWS // 2]))
            counted = {"candidates": candidate_keys(train), "row_counts": row_counts(train)}
            learned = {"fitted": model, "support": Support.fit(train), "domain": Domain.of(train), **counted}
            new = replace(old.family_models[family.name], **learned, min_us={}, floors=())
            bundles[each][name] = replace(old, family_models={family.name: new})
    return bundles


@contextmanager
def held_out(architecture: str, bundles: Mapping[str, Bundle]) -> Iterator[None]:
    """Predict from the bundles without the boards of an architecture."""
    load = shipped._cached_bundle
    every = shipped.shipped()
    names = frozenset(name for each in every for name in each.gpus if gpu(name).architecture == architecture)
    kept = tuple(replace(each, gpus=each.gpus - names) if each.path.name in bundles else each for each in every)
    with (
        patch.object(shipped, "shipped", lambda: kept),
        patch.object(shipped, "_cached_bundle", lambda path: bundles.get(path.name) or load(path)),
    ):
        yield


def steps(boards: Mapping[str, ServerKernels]) -> pd.DataFrame:
    """Return the measured and the predicted time of PIPEWEAVE's steps on the boards."""
    rows = []
    for row, board, network in measured_steps(DEFAULT_FOLDER):
        if board.name in boards:
            counts = Counter(layer.problem for layer in network.layers if isinstance(layer.problem, Operator))
            answers, _ = boards[board.name].answers("sglang", list(counts))
            predicted_us = sum(count * answers[problem].time_us for problem, count in counts.items())
            rows.append(row | {"gpu": board.name, "predicted_ms": predicted_us / 1e3})
    table = pd.DataFrame(rows)
    return table.assign(error=np.log(table["measured_ms"] / table["predicted_ms"]), library="sglang")


def half_width(rows: pd.DataFrame) -> float:
    """Return the `COVERAGE` quantile of the errors' sizes; each board has the same weight."""
    rows = rows.assign(size=rows["error"].abs()).sort_values("size")
    weight = 1 / rows.groupby("gpu")["size"].transform("size")
    return float(np.interp(COVERAGE, weight.cumsum() / weight.sum(), rows["size"]))


def step_scores(rows: pd.DataFrame, width: float) -> dict[str, float]:
    """Return the errors of a board's steps, and the coverage of the servers' intervals with a half width of steps."""
    line = {"n": float(len(rows)), "half_width": width}
    for phase, word in PHASES.items():
        part = rows[rows["phase"] == phase]
        low, high = np.hypot(getattr(server_models()["sglang"], word), width)
        line |= {
            f"{word}_median": float(np.median(np.abs(np.expm1(-part["error"])))),
            f"{word}_ratio": float(np.exp(-part["error"].median())),
            f"{word}_holds": part["error"].between(-low, high).mean(),
            f"{word}_width": float(np.exp((low + high) / 2)),
        }
    return line


def server_scores(rows: pd.DataFrame, width: float) -> dict[str, float]:
    """Return the errors of a board's servers by one framework, as `step_scores` does."""
    model, factor = server_models()[str(rows["library"].iloc[0])], width / unmeasured_half_width()
    widths = [{name: factor * getattr(each, name) for name in WIDTHS} for each in rows["steps"]]
    scaled = [replace(each, **own) for each, own in zip(rows["steps"], widths, strict=True)]
    times = np.array([each.intervals(model) for each in scaled])
    names = [f"{word}_{end}" for word in ("ttft", "tpot") for end in ("predicted", "low", "high")]
    rows = rows.assign(**dict(zip(names, times[:, :2].reshape(-1, 6).T, strict=True)))
    return {"n": float(len(rows)), "half_width": width, **scores(rows, "tpot"), **scores(rows, "ttft")}


@click.command(help=__doc__.splitlines()[0] if __doc__ else "")
@click.option("--store", "stores", is_flag=True, help="Write the half width of all boards for the product.")
def main(stores: bool) -> None:
    """Print and store the table."""
    measured = frozenset().union(*(each.gpus for each in shipped.shipped() if each.path.name in KERNELS))
    named = {board.name for _, board, _ in measured_steps(DEFAULT_FOLDER)}
    parts = [steps({name: ServerKernels(gpu(name)) for name in named - measured}).assign(held_out="board")]
    sample = read_sample(systems_folder(sys.executable))
    servers: list[pd.DataFrame] = []
    for architecture, bundles in refitted_models().items():
        with held_out(architecture, bundles):
            own = {name: ServerKernels(gpu(name)) for name in named if gpu(name).architecture == architecture}
            parts.append(steps(own).assign(held_out="architecture") if own else pd.DataFrame())
            rows = sample[[gpu(name).architecture == architecture for name in sample["gpu"]]]
            servers.append(predict_steps(rows) if len(rows) else pd.DataFrame())
    every = pd.concat(parts)
    lines: list[dict[str, Any]] = []
    for cut, own in every.groupby(["held_out", "gpu"]):
        labels = {"times": "steps", "held_out": cut[0], "gpu": cut[1], "library": "sglang"}
        lines.append(labels | step_scores(own, half_width(every[every["gpu"] != cut[1]])))
    for cut, own in pd.concat(servers).dropna(subset=["steps"]).groupby(["gpu", "library"]):
        labels = {"times": "servers", "held_out": "architecture", "gpu": cut[0], "library": cut[1]}
        lines.append(labels | server_scores(own, half_width(every[every["gpu"] != cut[0]])))
    click.echo(f"half width of all boards: {half_width(every):.3f}")
    if stores:
        stored = {**json.loads(SERVERS.read_bytes()), "unmeasured": round(half_width(every), 3)}
        write_text(SERVERS, f"{json.dumps(stored, indent=1)}\n")
    result = pd.DataFrame(lines).drop(columns=["tpot_p90", "tpot_rank", "ttft_p90", "ttft_rank"]).round(3)
    result.to_csv(HOME / "tables" / "serving_boards.csv", index=False)
    click.echo(result.to_string(index=False))


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        sys.exit(str(error))
