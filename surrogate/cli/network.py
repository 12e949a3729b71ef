"""``seer network``: how long a whole network takes, and where the time goes."""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import click

from surrogate.cli.groups import Grouped, section
from surrogate.cli.options import (
    GPU,
    PATH,
    SIZE,
    Form,
    SettingChoice,
    compare_gpus_option,
    limit_options,
    option,
    output_options,
    show,
    sizes_option,
)
from surrogate.cli.problem import CHOICES
from surrogate.features.errors import InputError
from surrogate.report.tables import Table, interval_us, terminal_width, wrapped

if TYPE_CHECKING:
    from surrogate.network.network import Network
    from surrogate.network.predict import Predictors
    from surrogate.network.result import NetworkTime

Key = TypeVar("Key", int, str)
Answer = TypeVar("Answer")
SHOWN = ("name", "problem", "algorithm", "time_us", "bound")
"""What fits a terminal; the machine-readable forms have the interval, workspace, FLOPs, bytes and source, too."""
COMMONEST = 3
"""Operators that cost nothing and are named."""
MAX_LAYERS = 50
"""Rows of layers that people see, the longest of a network that has more."""


def _dims(context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]) -> dict[str, int]:
    """Symbol → size."""
    sizes = {}
    for text in texts:
        parts = re.fullmatch("(.+)=([0-9]{1,9})", text)
        if parts is None or int(parts[2]) < 1:
            message = f"{text!r} is not readable; write NAME=SIZE, as in --dim height=224"
            raise click.BadParameter(message, context, parameter)
        sizes[parts[1]] = int(parts[2])
    return sizes


@click.command(cls=Grouped)
@click.argument("source", metavar="FILE")
@section("What is timed")
@option("--gpu", "The GPU, by registry name or alias.", GPU, required=True)
@compare_gpus_option
@option("--batch --bs", "Batch size in the place of the model's own.", SIZE)
@sizes_option("--sweep-batch", "Also these batch sizes; the best one is marked.")
@option("--max-batch", "The largest batch that fits the GPU's memory.", is_flag=True)
@option("--dim dims", "A symbolic size of an .onnx or .pt2 input.", multiple=True, metavar="NAME=SIZE", callback=_dims)
@option("--training", "A training iteration: forward, backward, optimizer.", is_flag=True)
@option(
    "--optimizer",
    "What ends it, as one fused pass over all weights  [default: adam]",
    ("adam", "adamw", "sgd", "sgd-momentum"),
)
@option("--data-parallel", "Train on N GPUs of a machine, each with the batch.", SIZE, default=1)
@section("Of a language model")
@option("--prefill", "A prompt of so many tokens.", SIZE, metavar="TOKENS")
@option("--decode", "A token behind such a context.", SIZE, metavar="CONTEXT")
@option("--tensor-parallel", "On one of N GPUs.", SIZE)
@option("--expert-parallel", "N of them hold different experts.", SIZE)
@option("--pipeline-parallel", "N such sets hold different layers.", SIZE)
@option("--routing", "How tokens spread over experts.", metavar="NAME")
@option("--kv-dtype", "Element type of the cache.", CHOICES["kv_dtype"])
@option("--library", "Whose kernels  [default: the fastest's]", ("vllm", "sglang", "trtllm"))
@section("How it runs")
@option(
    "--dtype",
    "Element type in the place of the model's own; of a language model's products also fp8, nvfp4, …",
    SettingChoice("dtype", CHOICES["dtype"]),
    metavar="TYPE",
)
@option(
    "--amp",
    "Run module:callable's forward pass under autocast to this type, with weights in fp32.",
    SettingChoice("dtype", ("fp16", "bf16")),
)
@option("--math", "Math type of convolutions  [default: by element type]", CHOICES["math"])
@option("--layout", "Layout of convolutions  [default: NCHW]", CHOICES["layout"])
@option(
    "--runtime",
    "What launches the kernels: one per operator, fused as torch.compile does, or fused as one CUDA graph"
    "  [default: eager for modules and .pt2; kernels alone for others]",
    ("eager", "compiled", "graphs"),
)
@option("--host", "How fast the host launches them  [default: usual]", ("usual", "fast", "slow"))
@section("What is allowed")
@limit_options
@option(
    "--utilization",
    "Share of the GPU's memory that may be taken  [default: 0.9 for language models, else 1]",
    click.FloatRange(0, 1, min_open=True),
    metavar="SHARE",
)
@option("--bundle", "Fitted model, a folder; else the one shipped.", PATH)
@section("What is printed")
@option("--by-type", "A row per operator in the place of a row per layer.", is_flag=True)
@output_options
def command(
    source: str,
    gpu: str,
    compare_gpus: list[str],
    sweep_batch: tuple[int, ...],
    form: Form,
    by_type: bool,
    **given: Any,
) -> None:
    """Predict the time of every layer of a network, without running it.

    FILE is an .onnx or .pt2 file (weights are not needed), a network that ships, by its name, a table of problems
    (parquet, CSV, or a text file with a problem per line), a language model's config.json from Hugging Face (with
    --prefill or --decode), or module:callable (also x.py:callable), which imports your module and runs on fake
    tensors what callable returns: (module, inputs), inputs being a tensor, a tuple or list, a dict of keyword
    arguments, or a tuple and a dict. --training is for all but config.json, --amp for modules. An iteration is
    forward, backward from the sum of what the module returns (return your loss to have it in), and --optimizer's
    fused step over all weights; data loading, gradient clipping and scaling are not in it. Layers are summed as if
    they ran one after another, as single kernels without gaps (a language model's with those of a CUDA graph).
    Where PyTorch launches them, the host's time counts, too: a pass takes the longer one of its kernels and its
    launches, and a floor. --runtime compiled fuses what lies between convolutions and products. With
    --data-parallel the gradients are summed beside the backward pass. Operators that this package does not know are
    named, counted and in no sum. --json and --csv also give every layer's interval, workspace, FLOPs, bytes and
    source.

    Examples:
      seer network resnet50 --gpu t4 --batch 8 --by-type
      seer network my_net.py --gpu v100 --training --amp fp16 --data-parallel 8
      seer network net.onnx --gpu t4 --batch 8 --compare-gpus v100,h100-sxm
      seer network config.json --gpu h200 --dtype fp8 --decode 4096 --batch 8
    """
    from surrogate.cli.datasets import progress_bar
    from surrogate.features.gpu import gpu as gpu_by_name
    from surrogate.network.network import ReadOptions
    from surrogate.network.predict import AlgorithmLimits, largest_batch
    from surrogate.network.read import read_network
    from surrogate.network.result import comparison_records

    names = (gpu, *compare_gpus)
    for name in names:  # a wrong name is told before the network is read
        gpu_by_name(name)
    limits = AlgorithmLimits(workspace_limit=given.pop("workspace_limit"), deterministic=given.pop("deterministic"))
    asked = {name: given.pop(name) for name in ("max_batch", "library", "utilization", "bundle")}
    options = ReadOptions(**given)
    network = read_network(source, options)
    steps = bool(options.prefill or options.decode)
    if asked["library"] and not steps:
        raise click.UsageError("--library is for language models; leave it out")
    if asked["max_batch"] and options.batch is not None:
        raise click.UsageError("--max-batch finds the batch itself; leave out --batch")

    def read(size: int) -> "Network":
        return read_network(source, options, batch=size)

    def timed(name: str) -> "tuple[Predictors, NetworkTime]":
        predictors = _predictors(network, name, steps, asked)
        at_batch = read(largest_batch(read, predictors, **limits)) if asked["max_batch"] else network
        return predictors, predictors.time(at_batch, **limits)

    answered, refused = _each("gpu", names, timed)
    if refused and not (compare_gpus and answered):
        raise InputError(refused[0]["refused"])
    predictors, time = next(iter(answered.values()))
    with progress_bar("network", "batch size") as step:
        sweep, not_swept = _each("batch", sweep_batch, lambda size: predictors.time(read(size), **limits), step)
    if sweep_batch and asked["max_batch"] and time.batch is not None:
        sweep = dict(sorted({**sweep, time.batch: time}.items()))
    batches = [*comparison_records("batch", sweep), *not_swept]
    gpus = [*comparison_records("gpu", {each.gpu: each for _, each in answered.values()}), *refused]
    gpus = gpus if compare_gpus else []
    if form:
        _show(time, batches, gpus, form, by_type)
    else:
        _print_report(time, batches, gpus, layers=not by_type and not steps, shared_by=options.tensor_parallel or 1)
    if not time.layers:
        raise click.exceptions.Exit(1)


def _predictors(network: "Network", name: str, steps: bool, asked: Mapping[str, Any]) -> "Predictors":
    """What predicts on a GPU; the ``steps`` of a language model run one framework's kernels, as a server does."""
    from surrogate.network.memory import UTILISATION
    from surrogate.network.predict import fastest_framework, load_predictors

    library = (asked["library"] or fastest_framework(network, name)) if steps else None
    if library:
        click.echo(f"kernels on {name}: {library}'s", err=True)
    share = asked["utilization"] or (UTILISATION if steps else 1.0)
    return replace(load_predictors(name, asked["bundle"], library), utilization=share)


def _each(
    kind: str, keys: Sequence[Key], answer: Callable[[Key], Answer], step: Callable[..., None] | None = None
) -> tuple[dict[Key, Answer], list[dict[str, Any]]]:
    """Key → answer, and a record for each key that is refused; ``step`` is told of each."""
    answers: dict[Key, Answer] = {}
    refused: list[dict[str, Any]] = []
    for done, key in enumerate(keys, 1):
        try:
            answers[key] = answer(key)
        except InputError as error:
            refused.append({kind: key, "refused": str(error)})
        if step:
            step(done, len(keys), f"{kind} {key}")
    return answers, refused


def _show(
    time: "NetworkTime", batches: list[dict[str, Any]], gpus: list[dict[str, Any]], form: Form, by_type: bool
) -> None:
    """Print JSON with everything, or CSV of batches, GPUs, types or layers: the first of these that is asked for."""
    beside = {name: rows for name, rows in (("sweep", batches), ("gpus", gpus)) if rows}
    types = {"types": time.by_type(), "algorithms": time.by_algorithm()} if by_type else {}
    rows = batches or gpus or (time.by_type() if by_type else [layer.to_dict() for layer in time.layers])
    show(rows, form, json_value={**time.to_dict(), **beside, **types})


def _print_report(
    time: "NetworkTime", batches: list[dict[str, Any]], gpus: list[dict[str, Any]], *, layers: bool, shared_by: int
) -> None:
    """Layers or types, classes, savings, batches, GPUs, and what is in no sum."""
    each = f"each of {shared_by} GPUs runs these layers; samples/s are of the whole replica of {shared_by} GPUs"
    for line in filter(None, (time.headline(), time.breakdown(), each if shared_by > 1 else "")):
        click.echo(wrapped(line, terminal_width()))
    _section("per GPU", [_totals(time)])
    held = {name: _gib(size) for name, size in time.memory.items() if size}
    _section("memory per GPU, GiB", [held] if held else [])
    if layers:
        click.echo()
        longest = sorted(time.layers, key=lambda layer: -layer.time_us)[:MAX_LAYERS]
        shown = time.layers if len(time.layers) <= MAX_LAYERS else longest
        _section("", [{name: getattr(layer, name) for name in SHOWN} for layer in shown])
        if left := len(time.layers) - len(shown):
            click.echo(f"… the longest {MAX_LAYERS}; {left} further layers: --csv")
        sources = Counter(layer.source for layer in time.layers)
        click.echo(f"source of the times: {_counts(dict(sources.most_common()))}")
    _section("by type", [_type(row) for row in time.by_type()])
    _section("algorithms", [_type(row) for row in time.by_algorithm()])
    classes = [
        {"class": name} | {f"{word} %": round(100 * share, 1) for word, share in shares.items()}
        for name, shares in time.classes().items()
    ]
    _section("convolutions by what bounds them", classes if time.by_algorithm() else [])
    if own := time.heuristic:
        share = 100 * own["saved_us"] / own["time_us"] if own["time_us"] else 0.0
        saved = f"saved over the library's heuristic: {own['saved_us'] / 1e3:.3f} ms ({share:.1f} %)"
        click.echo(f"\n{saved} of {own['convs']} convolutions, {own['unknown']} not known")
    each = " per GPU" if time.gpus > 1 else ""
    together = f"; samples/s of all {time.gpus} GPUs" if time.gpus > 1 else ""
    _section(f"batches{each}{together}", [_sweep(row) for row in batches])
    _section(
        f"GPUs{together}; a speedup is the ratio of expected times per sample, without an interval of its own",
        [_sweep(row) for row in gpus],
    )
    counted = {
        "unsupported, in no sum": time.unsupported,
        "convolutions outside the training data": time.outside_domain,
    }
    lines = [f"{title}: {_counts(counts)}" for title, counts in counted.items() if counts]
    if time.ignored:
        commonest = _counts(dict(Counter(time.ignored).most_common(COMMONEST)))
        lines.append(f"operators that cost nothing: {sum(time.ignored.values())}, most often {commonest}")
    for line in (*time.notes, *lines):
        click.echo(wrapped(line, terminal_width()))
    if layers and len(time.layers) > MAX_LAYERS:
        click.echo(wrapped(f"\n{time.headline()}", terminal_width()))


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} ×{count}" for name, count in counts.items())


def _section(title: str, rows: list[dict[str, Any]]) -> None:
    if rows:
        table = Table(rows, {"90 %, µs": interval_us}, title).text(terminal_width())
        click.echo(f"\n{table}" if title else table)


def _type(row: dict[str, Any]) -> dict[str, Any]:
    shown = {name: value for name, value in row.items() if name not in ("flops", "bytes", "share")}
    return shown | {"%": round(100 * row["share"], 1), "GFLOP": row["flops"] / 1e9, "MB": row["bytes"] / 1e6}


def _totals(time: "NetworkTime") -> dict[str, Any]:
    """Parameters, multiply-adds, and memory beside the GPU's."""
    parameters = None if time.parameters is None else time.parameters / 1e6
    shown = {"M parameters": parameters, "G multiply-adds": time.multiply_adds / 1e9}
    return shown | {"memory GiB": _gib(time.memory_bytes), "of GiB": _gib(time.gpu_memory_bytes), "fits": time.fits}


def _gib(size: int | None) -> float | None:
    return None if size is None else round(size / 2**30, 2)


def _sweep(row: dict[str, Any]) -> dict[str, Any]:
    """A batch or a GPU; of several batches the best one is marked, and one that is refused has the reason alone."""
    if "refused" in row:
        return row
    shown: dict[str, Any] = {name: row[name] for name in ("gpu", "batch", "total_us") if name in row}
    shown |= {
        "90 %, µs": (row["lower_us"], row["upper_us"]),
        "samples/s": row["samples_per_s"],
        "coverage %": round(100 * row["coverage"], 1),
        "GiB per GPU": _gib(row["memory_bytes"]),
        "fits": row["fits"],
    }
    if "gpu" in row:
        shown["measured %"] = round(100 * row["measured_share"], 1)
    shown |= {"speedup": row["speedup"]} if "speedup" in row else {}
    rivals = ", ".join(map(str, row.get("rivals", ())))
    best = f"◀ best, within the interval of {rivals}" if rivals else "◀ best"
    return shown | ({"": best if row["best"] else ""} if "best" in row else {})
