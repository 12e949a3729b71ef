"""``seer network``: predict the time of a whole network, layer by layer."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import click

from surrogate.cli import options as shared
from surrogate.cli.groups import Grouped, section
from surrogate.cli.options import HELP, PATH, Form, option, output_options, show
from surrogate.cli.problem import CHOICES
from surrogate.report.tables import MAX_NAME, Table, interval_us, shortened, terminal_width

if TYPE_CHECKING:
    from surrogate.network.network import Network, ReadOptions
    from surrogate.network.predict import AlgorithmLimits, Predictors
    from surrogate.network.result import GpuComparison, NetworkTime

LAYER_COLUMNS = ("name", "problem", "algorithm", "time_us", "bound")
"""Columns that fit a terminal; JSON and CSV also have the interval, workspace, FLOPs, bytes and source."""
OPTIMIZERS = ("adam", "adamw", "sgd", "sgd-momentum", "lion", "adafactor", "adam8bit", "muon")
MAX_IGNORED = 3
"""Maximum operators without cost that a report names."""
MAX_LAYERS = 50
"""Maximum rows of layers in a report; if a network has more layers, the longest ones."""


@dataclass(frozen=True, slots=True)
class NetworkRequest:
    """A network, and how it is read and predicted."""

    source: str
    options: "ReadOptions"
    limits: "AlgorithmLimits"
    bundle: Path | None
    library: str | None
    utilization: float | None
    max_batch: bool
    price: float | dict[str, float] | None
    samples: int | None

    @classmethod
    def of(cls, source: str, *, workspace_limit: int | None, deterministic: bool, **values: Any) -> Self:
        """Return the request of the command's options; fields of `ReadOptions` keep their names."""
        from surrogate.network.network import ReadOptions
        from surrogate.network.predict import AlgorithmLimits

        own = {name: values.pop(name) for name in ("bundle", "library", "utilization", "max_batch", "price", "samples")}
        limits = AlgorithmLimits(workspace_limit=workspace_limit, deterministic=deterministic)
        return cls(source, ReadOptions(**values), limits, **own)

    @property
    def is_step(self) -> bool:
        """Whether the network is a step of a language model."""
        return bool(self.options.prefill or self.options.decode)

    def read(self) -> "Network":
        """Read the network. Raises `click.UsageError` if an option does not apply to it."""
        from surrogate.network.read import read_network

        network = read_network(self.source, self.options)
        if self.library and not self.is_step:
            raise click.UsageError("--library is for --prefill and --decode of a language model; leave it out")
        if self.max_batch and self.options.batch is not None:
            raise click.UsageError("--max-batch finds the batch; leave out --batch")
        if self.samples is not None and (not self.options.training or network.batch is None):
            raise click.UsageError("--samples is an epoch's, for --training with a known batch; leave it out")
        return network

    def read_at(self, batch: int) -> "Network":
        """Read the network at another batch size."""
        from surrogate.network.read import read_network

        return read_network(self.source, self.options, batch=batch)


class NetworkResults(NamedTuple):
    """The time on the first GPU, records of compared batch sizes (errors, too), and the compared GPUs, if any."""

    time: "NetworkTime"
    batches: list[dict[str, Any]]
    gpus: "GpuComparison"
    costs: dict[str, float]


def _dims(context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]) -> dict[str, int]:
    """Return symbol → size."""
    sizes = {}
    for text in texts:
        parts = re.fullmatch("(.+)=([0-9]{1,9})", text)
        if parts is None or int(parts[2]) < 1:
            message = f"{text!r} is not NAME=SIZE; write, for example, --dim height=224"
            raise click.BadParameter(message, context, parameter)
        sizes[parts[1]] = int(parts[2])
    return sizes


@click.command(cls=Grouped)
@click.argument("source", metavar="FILE")
@section("Input")
@option("--gpu", "The GPU, by registry name or alias.", shared.GPU, required=True)
@shared.compare_gpus_option
@option("--batch --bs", "Batch size instead of the model's own.", shared.SIZE)
@shared.sizes_option("--sweep-batch", "Also predict these batch sizes and mark the best one.")
@shared.price_option
@option("--samples", "Samples of the data set: the time of an epoch and, with --price, its price.", shared.SIZE)
@option("--max-batch", "The largest batch that fits the GPU's memory.", is_flag=True)
@option("--dim dims", "A symbolic size of an .onnx or .pt2 input.", multiple=True, metavar="NAME=SIZE", callback=_dims)
@option("--training", "A training iteration: forward, backward, optimizer.", is_flag=True)
@option("--optimizer", "Optimizer of an iteration  [default: adam]", OPTIMIZERS)
@option("--accumulate", "Microbatches of an iteration, each with the batch.", shared.SIZE, default=1)
@option("--data-parallel", "Train on N GPUs, each with the batch and the whole model.", shared.SIZE, default=1)
@option("--fsdp", "Train on N GPUs, each with the batch and a share of the model (full shard).", shared.SIZE, default=1)
@option("--gpus-per-node", "GPUs of a node  [default: 8]", shared.SIZE)
@option("--node-gbps", HELP["network"]["node-gbps"], shared.POSITIVE, metavar="GBPS")
@section("Language models")
@option("--prefill", "Process a prompt of TOKENS tokens.", shared.SIZE, metavar="TOKENS")
@option("--decode", "Decode one token after CONTEXT tokens.", shared.SIZE, metavar="CONTEXT")
@option("--sequence", "Tokens of each sample in the training of a config.json.", shared.SIZE, metavar="TOKENS")
@option("--checkpointing", "Keep only the layers' inputs, and compute the rest again.", is_flag=True)
@option(
    "--lora",
    "Train adapters of this rank; with --dtype int4_wo, on 4-bit weights (QLoRA).",
    shared.SIZE,
    metavar="RANK",
)
@option("--tensor-parallel", "GPUs that share every layer.", shared.SIZE)
@option("--expert-parallel", "GPUs with different experts.", shared.SIZE)
@option("--pipeline-parallel", "Stages with different layers.", shared.SIZE)
@option("--routing", "Distribution of tokens over experts.", metavar="NAME")
@option("--kv-dtype", "Element type of the cache.", CHOICES["kv_dtype"])
@option("--library", "Framework of the kernels  [default: the fastest]", ("vllm", "sglang", "trtllm"))
@section("Execution")
@option("--dtype", HELP["network"]["dtype"], shared.SettingChoice("dtype", CHOICES["dtype"]), metavar="TYPE")
@option("--amp", HELP["network"]["amp"], shared.SettingChoice("dtype", ("fp16", "bf16")))
@option("--math", "Math type of convolutions  [default: by element type]", CHOICES["math"])
@option("--layout", "Layout of convolutions and batch norms  [default: NCHW]", CHOICES["layout"])
@option("--runtime", HELP["network"]["runtime"], ("eager", "compiled", "graphs"))
@option("--host", "Speed of the host that launches kernels  [default: usual]", ("usual", "fast", "slow"))
@section("Limits")
@shared.limit_options
@option("--utilization", HELP["network"]["utilization"], shared.NumberRange(0, 1, min_open=True), metavar="SHARE")
@option("--bundle", "Folder of a fitted bundle  [default: the shipped one]", PATH)
@section("Output")
@option("--by-type", "One row per operator instead of one row per layer.", is_flag=True)
@output_options
def command(
    source: str, gpu: str, compare_gpus: list[str], sweep_batch: Sequence[int], form: Form, by_type: bool, **values: Any
) -> None:
    """Predict the time of every layer of a network, without running it.

    FILE is an .onnx or .pt2 file (without weights, too), the name of a shipped network, a table of problems (parquet,
    CSV, or a text file with one problem per line), a language model's config.json or name on Hugging Face (with
    --prefill, --decode, or --training --sequence), or module:callable (also x.py:callable). A callable returns
    (module, inputs); inputs is a tensor, a tuple or list, a dict of keyword arguments, or a tuple and a dict. Your
    module is imported and runs on fake tensors.

    --amp is for modules and the training of a config.json. An iteration is forward, backward from the sum of the
    module's results (return your loss to include it), and the optimizer's fused step over all trained weights; a
    config.json has its loss over the vocabulary. Data loading, gradient clipping and scaling are not included. With
    --data-parallel, gradients are summed during the backward pass, once per step. With --fsdp, weights are gathered in
    both passes and gradients are scattered, for every microbatch.

    Layers run one after another, as single kernels without gaps; a language model's kernels have the gaps of a CUDA
    graph. If PyTorch launches the kernels, a pass takes as long as its kernels or its launches, whichever take longer,
    and at least a minimum time. --runtime compiled fuses the operators between convolutions and products. Unsupported
    operators are named and counted, but not included in sums. --json and --csv also have every layer's interval,
    workspace, FLOPs, bytes and source.

    Examples:
      seer network resnet50 --gpu t4 --batch 8 --by-type
      seer network my_net.py --gpu v100 --training --amp fp16 --data-parallel 8
      seer network net.onnx --gpu t4 --batch 8 --compare-gpus v100,h100-sxm
      seer network config.json --gpu h200 --dtype fp8 --decode 4096 --batch 8
      seer network llama-3.1-8b --gpu h100 --training --sequence 4096 --lora 16
    """
    from surrogate.features.gpu import gpu as gpu_by_name

    has_costs = values["price"] is not None or values["samples"] is not None
    if form == "csv" and has_costs and (sweep_batch or not compare_gpus):
        raise click.UsageError("--csv has --price and --samples for --compare-gpus only, not for batches; give --json")
    gpu_names = (gpu, *compare_gpus)
    for name in gpu_names:  # raises for a wrong name before the network is read
        gpu_by_name(name)
    request = NetworkRequest.of(source, **values)
    results = _predicted(request, request.read(), gpu_names, sweep_batch)
    if form:
        _show(results, form, by_type)
    else:
        is_step, shared_by = request.is_step, request.options.tensor_parallel or 1
        _print_report(results, layers=not by_type and not is_step, shared_by=shared_by)
    if not results.time.layers:
        raise click.exceptions.Exit(1)


def _predicted(
    request: NetworkRequest, network: "Network", gpu_names: Sequence[str], sweep_batch: Sequence[int]
) -> NetworkResults:
    """Predict the network on every GPU, and at every batch size on the first GPU with an answer.

    Raises `InputError` if there is no answer for any GPU.
    """
    from surrogate.cli.datasets import progress_bar
    from surrogate.network.predict import largest_batch
    from surrogate.network.result import compare_gpus, comparison_records, prices_of, try_each

    limits, read_at = request.limits, cache(request.read_at)
    predictors: dict[str, Predictors] = {}

    def predict(gpu_name: str) -> "NetworkTime":
        predictors[gpu_name] = _predictors(request, network, gpu_name)
        at_batch = network
        if request.max_batch:
            at_batch = read_at(largest_batch(read_at, predictors[gpu_name], **limits))
        return predictors[gpu_name].time(at_batch, **limits)

    prices = prices_of(request.price, gpu_names, request.source)
    gpus = compare_gpus(gpu_names, predict, prices, request.samples)
    first, time = next(iter(gpus.times.items()))
    with progress_bar("network", "batch size") as step:
        sweep, not_swept = try_each(sweep_batch, lambda n: predictors[first].time(read_at(n), **limits), step)
    if sweep_batch and request.max_batch and time.batch is not None:
        sweep = dict(sorted({**sweep, time.batch: time}.items()))
    refused = [{"batch": size, "refused": reason} for size, reason in not_swept.items()]
    batches = [*comparison_records("batch", sweep), *refused]
    return NetworkResults(time, batches, gpus, time.cost(prices.get(first), request.samples))


def _predictors(request: NetworkRequest, network: "Network", gpu_name: str) -> "Predictors":
    """Return the predictors for a GPU; a step of a language model uses one framework's kernels, as a server does."""
    from surrogate.network.memory import UTILISATION
    from surrogate.network.predict import fastest_framework, load_predictors

    library = (request.library or fastest_framework(network, gpu_name)) if request.is_step else None
    if library:
        shared.echo(f"kernels on {gpu_name}: {library}'s", err=True)
    share = request.utilization or (UTILISATION if request.is_step else 1.0)
    return replace(load_predictors(gpu_name, request.bundle, library), utilization=share)


def _show(results: NetworkResults, form: Form, by_type: bool) -> None:
    """Print JSON with all results, or CSV of the first requested one of batches, GPUs, types and layers."""
    time, batches = results.time, results.batches
    gpus = results.gpus.records() if results.gpus.is_comparison else []
    comparisons = {name: rows for name, rows in (("sweep", batches), ("gpus", gpus)) if rows}
    types = {"types": time.by_type(), "algorithms": time.by_algorithm()} if by_type else {}
    comparisons |= {"cost": results.costs} if results.costs else {}
    rows = batches or gpus or (time.by_type() if by_type else [layer.to_dict() for layer in time.layers])
    show(rows, form, json_value={**time.to_dict(), **comparisons, **types})


def _print_report(results: NetworkResults, *, layers: bool, shared_by: int) -> None:
    """Print layers or types, classes, savings, batches, GPUs, and unsupported operators."""
    time = results.time
    replica = f"each of {shared_by} GPUs runs these layers; samples/s are for the whole replica of {shared_by} GPUs"
    for line in filter(None, (time.headline(), time.breakdown(), replica if shared_by > 1 else "")):
        shared.echo(line, width=terminal_width())
    _section("per GPU", [_totals_row(time)])
    memory = {name: round(size / 2**30, 2) for name, size in time.memory.items() if size}
    _section("memory per GPU at the peak, GiB", [memory] if memory else [])
    if layers:
        _print_layers(time)
    _print_types(time)
    _print_comparisons(results)
    _print_notes(time)
    if layers and len(time.layers) > MAX_LAYERS:
        shared.echo("", time.headline(), width=terminal_width())


def _print_layers(time: "NetworkTime") -> None:
    """Print the layers, or rows of the longest if they are more than `MAX_LAYERS`, and the sources of all times."""
    from surrogate.network.result import longest_layers

    title, omitted = "", 0
    rows = [{name: getattr(layer, name) for name in LAYER_COLUMNS} for layer in time.layers]
    if len(rows) > MAX_LAYERS:
        rows, omitted = longest_layers(time.layers, LAYER_COLUMNS, MAX_LAYERS)
        title = "layers, the longest first; equal ones share a row, with the time of each"
    shared.echo(*[""] * (not title))
    _section(title, rows)
    if omitted:
        shared.echo(f"{omitted} further layers: --csv")
    shared.echo(f"source of the times: {_counts(dict(Counter(layer.source for layer in time.layers).most_common()))}")


def _print_types(time: "NetworkTime") -> None:
    """Print the times by type, by algorithm and by class, and the time saved over the library's heuristic."""
    _section("by type", [_type_row(row) for row in time.by_type()])
    _section("algorithms", [_type_row(row) for row in time.by_algorithm()])
    classes = [
        {"class": name} | {f"{word} %": round(100 * share, 1) for word, share in shares.items()}
        for name, shares in time.classes().items()
    ]
    _section("convolutions by what bounds them", classes if time.by_algorithm() else [])
    if heuristic := time.heuristic:
        share = 100 * heuristic["saved_us"] / heuristic["time_us"] if heuristic["time_us"] else 0.0
        saved = f"saved over the library's heuristic: {heuristic['saved_us'] / 1e3:.3f} ms ({share:.1f} %)"
        shared.echo("", f"{saved} for {heuristic['convs']} convolutions; {heuristic['unknown']} are unknown")


def _print_comparisons(results: NetworkResults) -> None:
    """Print the costs, and the rows of the compared batch sizes and GPUs."""
    from surrogate.network.result import COSTS, comparison_row

    count = results.time.gpus
    costs = {COSTS[name]: value for name, value in results.costs.items()}
    _section("costs of all GPUs", [costs] if costs else [])
    per_gpu = f" per GPU; samples/s of all {count} GPUs" if count > 1 else ""
    _section(f"batches{per_gpu}", [comparison_row(row) for row in results.batches])
    if results.gpus.is_comparison:
        shared.echo("")
        show([], table=results.gpus.table())


def _print_notes(time: "NetworkTime") -> None:
    """Print the notes, and the operators that are unsupported, outside the training data, or without cost."""
    groups = {"unsupported, in no sum": time.unsupported, "convolutions outside the training data": time.outside_domain}
    lines = [f"{title}: {_counts(counts)}" for title, counts in groups.items() if counts]
    if time.ignored:
        most_common = _counts(dict(Counter(time.ignored).most_common(MAX_IGNORED)))
        lines.append(f"operators without cost: {sum(time.ignored.values())}, most often {most_common}")
    for line in (*time.notes, *lines):
        shared.echo(line, width=terminal_width())


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{shortened(name, MAX_NAME)} ×{count}" for name, count in counts.items())


def _section(title: str, rows: list[dict[str, Any]]) -> None:
    if rows:
        shared.echo(*[""] * bool(title))
        show(rows, table=Table(rows, {"90 %, µs": interval_us}, title))


def _type_row(row: dict[str, Any]) -> dict[str, Any]:
    record = {name: value for name, value in row.items() if name not in ("flops", "bytes", "share")}
    return record | {"%": round(100 * row["share"], 1), "GFLOP": row["flops"] / 1e9, "MB": row["bytes"] / 1e6}


def _totals_row(time: "NetworkTime") -> dict[str, Any]:
    """Return parameters, multiply-adds, rates, the memory, and the GPU's memory."""
    from surrogate.network.result import gib, percent

    parameters = None if time.parameters is None else time.parameters / 1e6
    record = {"M parameters": parameters, "G multiply-adds": time.multiply_adds / 1e9}
    rates = {"tokens/s": time.tokens_per_s_per_gpu} if time.tokens_per_s else {}
    if time.peak and time.mfu:
        rates |= {"TFLOP/s": time.tflops_per_s, f"MFU % of {time.peak.tflops:g} ({time.peak.name})": percent(time.mfu)}
    sizes = {"memory GiB": gib(time.memory_bytes), "of GiB": gib(time.gpu_memory_bytes)}
    return record | rates | sizes | {"fits": time.fits}
