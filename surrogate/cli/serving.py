"""``seer serving``: find the GPUs, parallelism, framework and types that serve a language model."""

from pathlib import Path
from typing import Any

import click

from surrogate.cli import options as shared
from surrogate.cli.groups import Grouped, section
from surrogate.cli.options import PATH, Form, option, output_options, show

SHARE = shared.NumberRange(0, 1, min_open=True)


@click.command(cls=Grouped)
@click.argument("config", type=PATH)
@section("Load")
@option("--gpu", "The GPU, by registry name or alias.", shared.GPU, required=True)
@shared.compare_gpus_option
@option("--gpus", "Maximum GPUs of all replicas.", shared.SIZE, default=8)
@option("--input", "Tokens of a prompt.", shared.SIZE, required=True, metavar="TOKENS")
@option("--output", "Tokens of an answer.", shared.SIZE, required=True, metavar="TOKENS")
@option("--cached-share", "Share of a prompt in a prefix cache  [default: 0]", shared.NumberRange(0, 1, max_open=True))
@option("--utilization", "Share of a GPU's memory that a server takes.", SHARE, default=0.9, metavar="SHARE")
@shared.sizes_option("--concurrency --users", "Users at a time, on all replicas together  [default: 1 to 256 on one]")
@section("Targets")
@option("--ttft ttft_ms", "Longest time to first token, in ms.", shared.POSITIVE, metavar="MS")
@option("--tpot tpot_ms", "Longest time per output token, in ms.", shared.POSITIVE, metavar="MS")
@shared.price_option
@section("Limits of the search")
@option("--library libraries", "Frameworks: vllm, sglang, trtllm  [default: all]", metavar="NAME,…")
@shared.sizes_option("--tensor-parallel", "GPUs that share every layer  [default: 1, 2, 4, …]")
@shared.sizes_option("--attention-parallel", "Groups with their own requests that share the experts.")
@shared.sizes_option("--expert-parallel", "GPUs with different experts  [default: 1 and all]")
@shared.sizes_option("--pipeline-parallel", "Stages with different layers  [default: 1; for whole nodes 2, 4, …]")
@option("--dtype dtypes", "Element types of products instead of the model's own: fp8, nvfp4, …", metavar="TYPE,…")
@option("--kv-dtype kv_dtypes", "Element types of the cache, such as fp8.", metavar="TYPE,…")
@option("--routing", "Distribution of tokens over experts: balanced, power_law_1.2 …", metavar="NAME")
@section("Output")
@option("--launch", "Print the command that starts the best server, or the first one; a column of --csv.", is_flag=True)
@shared.html_option
@output_options
def command(config: Path, launch: bool, html: Path | None, form: Form, **options: Any) -> None:
    """Size a server for a language model: GPUs, parallelism, framework and types that meet your latency targets.

    CONFIG is the model's config.json from Hugging Face, its folder, or the name of a checkpoint whose configuration
    ships or is on this machine. Every configuration is a server with continuous batching. Its users send a prompt, read
    the answer and begin again. Times are sums of the kernels in a step of vLLM, SGLang or TensorRT-LLM, without gaps
    between them; the time to first token adds the steps that a prompt waits. A replica has tensor × attention ×
    pipeline parallelism GPUs: SGLang's --tp 8 --dp 8 is --tensor-parallel 1 --attention-parallel 8.

    Configurations that meet --ttft and --tpot come first, sorted by tokens per second and GPU, or by the price of a
    token. The others follow, sorted by their distance to the targets. Without targets, no configuration is the best.
    The exit status is 1 if no configuration meets the targets, or if none fits.

    Examples:
      seer serving config.json --gpu h200 --input 1024 --output 512 --tpot 30
      seer serving openai/gpt-oss-20b --gpu h200 --input 9 --output 99 --launch
    """
    from surrogate.network.serving_search import serve

    serving = serve(config, **options)
    if html:
        from surrogate.dataset.files import write_text
        from surrogate.network.serving_result import serving_page

        write_text(html, serving_page(serving))
    answer = serving.to_dict()
    rows = [{name: value for name, value in row.items() if launch or name != "launch"} for row in answer["rows"]]
    show(rows, form, json_value=answer, table=serving.table())
    if launch and not form and serving.launch:
        shared.echo("", serving.launch)
    if form and serving.verdict:  # a table includes the verdict in its notes
        shared.echo(serving.verdict, err=True)
    if not serving.fits or (any(serving.targets) and not serving.best):
        raise click.exceptions.Exit(1)
