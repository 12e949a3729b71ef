"""What the shipped bundles answer to a stored sample of questions, and which answers a change of the code moves.

``python -m experiments.answers`` asks every question of ``data/answers.parquet`` again and prints, for each family, how
many answers differ from the stored ones by more than 0.5 %, and the largest of them: nobody changes predictions
unawares. Exit status 1 where any does. ``--store`` writes the answers of today in their place, to be committed with the
change that meant them. Half a minute on 2 cores.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np
import pandas as pd

from experiments.experiment import HOME, in_one_line
from surrogate import bundled
from surrogate.dataset.files import atomic_path
from surrogate.features.errors import InputError
from surrogate.features.families import OPERATORS, AnyProblem, family_of, operator, parse_problem
from surrogate.features.gpu import gpu as gpu_named
from surrogate.features.size import declared_sizes
from surrogate.network.predict import load_predictors
from surrogate.network.read import read_network
from surrogate.prediction.predictor import Predictor
from surrogate.prediction.shipped import load, load_operators
from surrogate.trace.events.read import read_trace
from surrogate.trace.graph import graph_of
from surrogate.trace.profiling import profile
from surrogate.trace.whatif import Network as Workers
from surrogate.trace.whatif import evaluate, setting_of, what_if

STORED = HOME / "data" / "answers.parquet"
TOLERANCE = 0.005
"""Relative difference of an answer that is reported."""
ROUNDING = 1e-9
"""Relative difference that processors of two kinds may give: their logarithms differ in the last bit."""
GPUS = (
    "v100-sxm2-16gb", "t4", "titan-xp", "gtx-1080-ti", "k80", "a100-sxm4-80gb", "h100-sxm", "h200-sxm", "b300", "l40s",
    "rtx-4090", "rtx-3090", "mi100", "mi210", "mi300x", "mi50", "b60",
)  # fmt: skip
"""Measured with convolutions, with products, with both, and never."""
CONVOLUTIONS = (
    "n32c256h14w14k256r3s3p1", "n1c64h56w56k64r1s1", "n64c3h224w224k64r7s7p3u2", "n8c960h7w7k960r3s3p1g960",
    "n16c128h28w28k128r3s3p2l2", "n256c32h35w35k64r5s5p2",
)  # fmt: skip
PROBLEMS: tuple[tuple[str, dict[str, str]], ...] = (
    *((text, {"direction": direction}) for text in CONVOLUTIONS for direction in ("fwd", "bwd_data", "bwd_filter")),
    *((text, {"dtype": "fp16", "layout": "NHWC"}) for text in CONVOLUTIONS),
    *(
        (text, {"dtype": dtype})
        for text in ("gemm:m4096n4096k7168", "gemm:m1n4096k4096", "gemm:m300n1000k500")
        for dtype in ("fp32", "fp16", "bf16", "fp8", "fp8_block", "nvfp4")
    ),
    ("bmm:batch96m128n128k64", {}),
    ("linear:m512n1024k1024", {"dtype": "fp16"}),
    *(
        (text, {"kv_dtype": dtype})
        for text in ("attention:b8h32g8d128q2048k2048", "attention:b64h32g8d128q1k4096", "attention:b2h16g16d64q777")
        for dtype in ("bf16", "fp8")
    ),
    ("mla:b8h16q1k4096", {}),
    ("mla:b1h128q3000k3000", {}),
    ("moe:t256h7168i2048k8e256tp1ep8", {"dtype": "fp8_block"}),
    ("moe:t8192h4096i1536k8e128", {"routing": "power_law_1.2"}),
    ("softmax:n4096c1000", {}),
    ("layer_norm:n8192c1024", {"dtype": "fp16"}),
    ("batch_norm:n32c256h28w28", {}),
    ("relu:n32c256h28w28", {}),
    ("gelu:n8192c4096", {"dtype": "fp16"}),
    ("max_pool:n32c64h112w112window3stride2pad1", {}),
    ("avg_pool_backward:n32c1024h7w7window7", {}),
    ("embedding_bag:batch2048rows1000000tables8bag32dim64", {}),
    ("all_reduce:elements16777216ranks8", {"dtype": "bf16"}),
    ("quantise:n4096c7168", {}),
)
ONNX = ("resnet50", "transformer")
WHAT_IFS = ("amp", "fused-adam", "batch=256", "faster-kernels=2", "data-parallel=8")


class Answer(NamedTuple):
    """A question and one of its answers, in µs; NaN where the question is refused."""

    family: str
    gpu: str
    question: str
    settings: str
    candidate: str
    time_us: float
    lower_us: float
    upper_us: float


def answers() -> Iterator[Answer]:
    """Every question's answers, in a fixed order."""
    for name in GPUS:
        operators = load_operators(name)
        try:
            convolutions = load(name)
        except InputError:  # no convolution was measured on such a GPU
            convolutions = operators
        for text, settings in (*PROBLEMS, *((str(problem), {}) for problem in _kinds())):
            problem = parse_problem(text, **settings)
            kind = family_of(problem)
            if "math" not in settings:
                problem = replace(problem, math=kind.default_math(problem.dtype, gpu_named(name)))
            asked = (kind.name, name, text, ",".join(f"{key}={value}" for key, value in settings.items()))
            yield from _selection(asked, problem, convolutions)
            if ":" in text:
                yield from _kernel(asked, problem, operators)
    yield from _table()
    yield from _networks()
    yield from _what_ifs()


SIZES = {
    "n": 64, "c": 96, "h": 14, "w": 14, "window": 2, "m": 640, "k": 384, "elements": 99_999, "batch": 32, "rows": 5000,
    "dim": 32,
}  # fmt: skip


def _kinds() -> list[AnyProblem]:
    """A problem of every operator that these sizes describe, so that none is left out."""
    problems = []
    for kind, cls in OPERATORS.items():
        needed = {size.name for size in declared_sizes(cls) if size.default is None}
        if needed <= set(SIZES):
            problems.append(operator(kind, **{name: SIZES[name] for name in cls.size_names() if name in SIZES}))
    return problems


def _selection(asked: tuple[str, str, str, str], problem: AnyProblem, predictor: Predictor) -> Iterator[Answer]:
    try:
        selection = predictor.select(problem)
    except InputError:
        yield Answer(*asked, "refused", np.nan, np.nan, np.nan)
        return
    for ranked in selection.candidates:
        candidate = " ".join(filter(None, (ranked.library, ranked.algorithm, ranked.solver)))
        yield Answer(*asked, candidate, ranked.time_us, ranked.lower_us, ranked.upper_us)


def _kernel(asked: tuple[str, str, str, str], problem: AnyProblem, predictor: Predictor) -> Iterator[Answer]:
    try:
        (time,) = predictor.kernel_times([problem])
    except InputError:
        yield Answer(*asked, "kernel refused", np.nan, np.nan, np.nan)
        return
    yield Answer(*asked, f"kernel ({time.source})", time.time_us, time.lower_us, time.upper_us)


def _table() -> Iterator[Answer]:
    """Rows of the shipped table, by the way that answers whole tables."""
    rows = pd.read_parquet(bundled.DATASET).sample(400, random_state=0)
    predicted = load(bundled.FOLDER / "cudnn7").predict(rows)
    ends = zip(predicted.predicted_us, predicted.lower_us, predicted.upper_us, strict=True)
    for row, times in zip(rows.itertuples(), ends, strict=True):
        yield Answer("conv", str(row.gpu), f"row {row.Index}", "", str(row.algorithm), *map(float, times))


def _networks() -> Iterator[Answer]:
    for name in ("h200-sxm", "rtx-4090", "v100-sxm2-16gb", "mi100"):
        predictors = load_predictors(name)
        networks = {
            "llama-3.1-8b": read_network("llama-3.1-8b", decode=4096, batch=8),
            "deepseek-v3": read_network("deepseek-v3", prefill=2048, tensor_parallel=8),
        }
        for network in ONNX:
            networks[f"{network} forward"] = read_network(network, batch=8)
            networks[f"{network} training"] = read_network(network, batch=8, training=True)
        for label, network in networks.items():
            try:
                time = predictors.time(network)
            except InputError:
                yield Answer("network", name, label, "", "refused", np.nan, np.nan, np.nan)
                continue
            yield Answer("network", name, label, "", "total", time.total_us, time.lower_us, time.upper_us)


def _what_ifs() -> Iterator[Answer]:
    profiled = profile(read_trace(bundled.TRACES["vgg13_h100"]))
    graph = graph_of(profiled.trace, profiled.layers)
    for target in (None, "a100", "mi300x"):
        setting = setting_of(profiled, target=target, network=Workers(8, 12.5))
        for answer in evaluate(graph, [what_if(text) for text in (("gpu",) if target else WHAT_IFS)], setting):
            row = answer.to_dict()
            ends = (np.nan if row[end] is None else row[end] for end in ("low_us", "high_us"))
            yield Answer("what-if", target or "h100", "vgg13_h100", "", row["name"], row["predicted_us"], *ends)


def moved(before: pd.DataFrame, after: pd.DataFrame) -> pd.DataFrame:
    """Answers of either table, joined: columns ``before_us``, ``after_us`` and ``change``, the larger relative
    difference of time and interval; infinite where only one table answers a question of ``before`` so."""
    key = list(Answer._fields[:5])
    after = after.merge(before[key[:4]].drop_duplicates())
    times = list(Answer._fields[5:])
    both = before.merge(after, on=key, how="outer", suffixes=("_before", "_after"), indicator=True)
    changes = []
    for name in times:
        old, new = both[f"{name}_before"], both[f"{name}_after"]
        changes.append((new / old - 1).abs().where(~(old.isna() & new.isna()), 0.0).fillna(np.inf))
    change = pd.concat(changes, axis=1).max(axis=1).where(both["_merge"] == "both", np.inf)
    renamed = both.rename(columns={"time_us_before": "before_us", "time_us_after": "after_us"})
    return renamed[[*key, "before_us", "after_us"]].assign(change=change)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--store", is_flag=True, help="Write today's answers in the place of the stored ones.")
@click.option("--exact", is_flag=True, help="Count every difference beyond rounding, which machines do not share.")
@click.option("--stored", default=STORED, type=click.Path(path_type=Path), help="The stored answers.")
def main(store: bool, exact: bool, stored: Path) -> None:
    """Compare the shipped bundles' answers with the stored ones. Exit status 1 where one moved."""
    with in_one_line("answers"):
        now = pd.DataFrame(answers(), columns=list(Answer._fields))
        if store:
            with atomic_path(stored) as path:
                now.to_parquet(path, index=False, compression="zstd")
            click.echo(f"{len(now)} answers stored")
            return
        table = moved(pd.read_parquet(stored), now)
    tolerance = ROUNDING if exact else TOLERANCE
    for name, rows in table.groupby("family"):
        others = rows[rows["change"] > tolerance].sort_values("change", ascending=False)
        if len(others):
            worst = others.iloc[0]
            click.echo(
                f"{name}: {len(others)} of {len(rows)} answers moved by more than {100 * tolerance:.2g} %;"
                f" most: {worst.question} {worst.settings} on {worst.gpu}, {worst.candidate}:"
                f" {worst.before_us:.4g} -> {worst.after_us:.4g} us"
            )
    count = int((table["change"] > tolerance).sum())
    click.echo(f"{count} of {len(table)} answers moved")
    raise SystemExit(1 if count else 0)


if __name__ == "__main__":
    main()
