"""``seer serving``: find the GPUs, parallelism, framework and types that serve a language model."""

from pathlib import Path
from typing import Any

import click

from surrogate.cli import options as shared
from surrogate.cli.groups import Grouped
from surrogate.cli.options import PATH, Form, declared, show


@click.command(cls=Grouped)
@click.argument("config", type=PATH)
@declared(__file__)
def command(config: Path, html: Path | None, form: Form, **options: Any) -> None:
    """Size a server for a language model: GPUs, parallelism, framework and types that meet your latency targets.

    CONFIG is the model's config.json from Hugging Face, its folder, or the name of a shipped model. Every configuration
    is a server with continuous batching. Its users send a prompt, read the answer and begin again. Times are sums of
    the kernels in a step, plus the overhead of vLLM, SGLang or TensorRT-LLM.

    Configurations that meet --ttft and --tpot come first, sorted by tokens per second and GPU, or by the price of a
    token. The others follow, sorted by their distance to the targets. Without targets, no configuration is the best.
    The exit status is 1 if no configuration meets the targets, or if none fits.

    Examples:
      seer serving config.json --gpu h200 --input 1024 --output 512 --tpot 30
      seer serving llama-3.3-70b --gpu h200 --input 512 --output 99
    """
    from surrogate.network.serving_search import serve

    serving = serve(config, **options)
    if html:
        from surrogate.dataset.files import write_text
        from surrogate.network.serving_result import serving_page

        write_text(html, serving_page(serving))
    answer = serving.to_dict()
    show(answer["rows"], form, json_value=answer, table=serving.table())
    if form and serving.verdict:  # a table includes the verdict in its notes
        shared.echo(serving.verdict, err=True)
    if not serving.fits or (any(serving.targets) and not serving.best):
        raise click.exceptions.Exit(1)
