"""``seer serving``: what to buy for a language model's users, and how to run it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from surrogate.cli.groups import Grouped, section
from surrogate.cli.options import (
    GPU,
    PATH,
    POSITIVE,
    SIZE,
    Form,
    compare_gpus_option,
    html_option,
    option,
    output_options,
    show,
    sizes_option,
)


def _price(context: click.Context, parameter: click.Parameter, text: str | None) -> float | dict[str, float] | None:
    """US dollars per GPU and hour: one number, or NAME=X,NAME=X."""
    parts = [part.partition("=") for part in (text or "").split(",") if part.strip()]
    try:
        prices = {name.strip(): float(usd or name) for name, _, usd in parts}
    except ValueError:
        prices = {}
    is_one = len(parts) == 1 and not parts[0][1]
    is_list = is_one or all(equals for _, equals, _ in parts)  # a comma within a number makes two parts
    if text is not None and not (prices and is_list and all(0 < usd < float("inf") for usd in prices.values())):
        message = f"{text!r} is no price; write dollars per GPU and hour with a point, as 2.5 or h100=2.5,h200=3.8"
        raise click.BadParameter(message, context, parameter)
    return next(iter(prices.values())) if is_one else prices or None


def _names_option(names: str, text: str, metavar: str = "NAME,…") -> Callable[..., Any]:
    """Add an option whose value is names with commas between."""
    return option(names, text, metavar=metavar, callback=_names)


def _names(context: click.Context, parameter: click.Parameter, text: str | None) -> tuple[str, ...]:
    """The names in ``A,B,…``, in any case."""
    return tuple(dict.fromkeys(name.strip().casefold() for name in (text or "").split(",") if name.strip()))


@click.command(cls=Grouped)
@click.argument("config", type=PATH)
@section("What is served")
@option("--gpu", "The GPU, by registry name or alias.", GPU, required=True)
@compare_gpus_option
@option("--gpus", "Most GPUs of all replicas.", SIZE, default=8)
@option("--input", "Tokens of a prompt.", SIZE, required=True, metavar="TOKENS")
@option("--output", "Tokens of an answer.", SIZE, required=True, metavar="TOKENS")
@sizes_option("--concurrency --users", "Users at a time, on all replicas together  [default: 1 to 256 on one]")
@section("What it must keep")
@option("--ttft ttft_ms", "Longest time to the first token, in ms.", POSITIVE, metavar="MS")
@option("--tpot tpot_ms", "Longest time per further token, in ms.", POSITIVE, metavar="MS")
@option("--price", "US dollars per GPU and hour; by GPU: h100=2.5,h200=3.8.", metavar="USD", callback=_price)
@section("What the search tries, all where it is not said")
@_names_option("--library libraries", "Whose servers: vllm, sglang, trtllm  [default: all]")
@sizes_option("--tensor-parallel", "GPUs that share a layer  [default: 1, 2, 4, …]")
@sizes_option("--attention-parallel", "Groups that attend to requests of their own and share experts.")
@sizes_option("--expert-parallel", "GPUs that hold different experts  [default: 1 and all]")
@sizes_option("--pipeline-parallel", "Stages that hold different layers  [default: 1; of whole nodes 2, 4, …]")
@_names_option(
    "--dtype dtypes",
    "Element type in the place of the model's own; of a language model's products also fp8, nvfp4, … Several: A,B.",
    "TYPE,…",
)
@_names_option("--kv-dtype kv_dtypes", "Element types of the cache, as fp8.", "TYPE,…")
@option("--routing", "How tokens spread over experts: balanced, power_law_1.2 …", metavar="NAME")
@section("What is printed")
@html_option
@output_options
def command(config: Path, html: Path | None, form: Form, **asked: Any) -> None:
    """Size a server for a language model: GPUs, parallelism, framework and types that keep your latency targets.

    CONFIG is the model's config.json from Hugging Face or its folder, or a model that ships, by name. Every
    configuration is a continuously batching server whose users each send a prompt, read the answer and begin again:
    the times are those of steps of kernels, with what vLLM, SGLang or TensorRT-LLM add. Those that keep --ttft and
    --tpot come first, each by tokens per second and GPU, or by the price of a token, then the others by how close they
    come. Without either no configuration is called the best. The exit status is 1 where none keeps the targets, or
    nothing fits.

    Examples:
      seer serving config.json --gpu h200 --input 1024 --output 512 --tpot 30
      seer serving llama-3.3-70b --gpu h200 --input 512 --output 99
    """
    from surrogate.network.serving_search import serve

    serving = serve(config, **asked)
    if html:
        from surrogate.dataset.files import write_text
        from surrogate.network.serving_result import serving_page

        write_text(html, serving_page(serving))
    answer = serving.to_dict()
    show(answer["rows"], form, json_value=answer, table=serving.table())
    if form and serving.verdict:  # a table has it among its notes
        click.echo(serving.verdict, err=True)
    if not serving.fits or (any(serving.targets) and not serving.best):
        raise click.exceptions.Exit(1)
