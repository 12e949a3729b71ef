"""``seer trace whatif``: predict what an optimisation would gain, from a trace taken without it."""

from pathlib import Path
from typing import Any

import click

from surrogate.cli.options import output_options, show
from surrogate.cli.trace.options import file_argument, load, part_options
from surrogate.features.errors import InputError

_NARROW = ("name", "baseline_us", "predicted_us", "speedup", "low_us", "high_us")


@click.command()
@file_argument
@click.argument("what_ifs", nargs=-1, metavar="WHAT-IF…")
@part_options
@click.option("--gpu", metavar="G", help="The GPU asked about (gpu, amp-roofline).")
@click.option("--own-gpu", metavar="G", help="The GPU of the trace, where it names none or another.")
@click.option("--workers", type=click.IntRange(min=1), default=8, show_default=True, help="Of data-parallel.")
@click.option("--bandwidth", type=float, default=10.0, show_default=True, metavar="GB/s", help="Per link.")
@click.option("--latency", type=float, default=10.0, show_default=True, metavar="US", help="µs per step.")
@click.option("--bundle", type=click.Path(path_type=Path), help="A fitted bundle for best-convolution.")
@click.option("--function", "functions", multiple=True, metavar="MODULE:CALLABLE",
              help="Your own: imported, called with the graph, returns one. Repeatable.")  # fmt: skip
@click.option("--together", is_flag=True, help="Also all of them at once, in the given order.")
@click.option("--timeline", type=click.Path(path_type=Path), help="The last one's timeline, for Perfetto.")
@click.option("--figures", type=click.Path(path_type=Path), metavar="DIR", help="Figures, as SVG.")
@output_options
def command(
    file: Path, what_ifs: tuple[str, ...], gpu: str | None, own_gpu: str | None, workers: int, bandwidth: float,
    latency: float, bundle: Path | None, functions: tuple[str, ...], together: bool, timeline: Path | None,
    figures: Path | None, as_json: bool, as_csv: bool, **part: Any,
) -> None:  # fmt: skip
    """Time per iteration of FILE as measured and as predicted with each WHAT-IF.

    WHAT-IF: amp, amp-tensor, amp-roofline, fused-adam, batch-norm, cuda-graphs, best-convolution, batch=N, gpu,
    faster-kernels=N, faster-host=N, faster-network=N (N times as fast, 2 without), data-parallel=N (workers),
    parameter-server=N and p3=N (GB/s, in the place of --bandwidth). batch without a number doubles it.

    Times are of the whole part of the trace, from the first start to the last end, over its iterations: with few
    iterations the device's last work, behind the host's end, is a visible share. Leave a warm-up out with --iteration.
    """
    from surrogate.trace.graph import graph_of
    from surrogate.trace.profiling import profile
    from surrogate.trace.whatif import Network, evaluate, setting_of, user_function, what_if

    chosen = [*map(what_if, what_ifs), *map(user_function, functions)]
    if not chosen:
        from surrogate.trace.whatif import MODELS

        raise InputError(f"no what-if given; name at least one of {', '.join(MODELS)}")
    network = Network(workers, bandwidth, latency)
    one = profile(load(file, **part), own_gpu)
    setting = setting_of(one, target=gpu, network=network, bundle=bundle)
    answers = evaluate(graph_of(one.trace, one.layers), chosen, setting, together=together)
    if timeline is not None:
        from surrogate.trace.whatif import write_timeline

        write_timeline(answers[-1].predicted, timeline, answers[-1].name)
    if figures is not None:
        from surrogate.trace.whatif.output import write_figures

        write_figures(answers, figures)
    rows = [answer.to_dict() for answer in answers]
    shown = rows if as_json else [{key: row[key] for key in _NARROW} for row in rows]
    show(shown, as_json=as_json, as_csv=as_csv)
    for answer in answers if not (as_json or as_csv) else []:
        for note in answer.notes:
            click.echo(f"{answer.name}: {note}")
