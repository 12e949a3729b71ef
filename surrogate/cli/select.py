"""``seer select``: the algorithm to run on a problem."""

import sys
from typing import TYPE_CHECKING, Any

import click

from surrogate.cli.output import output_options, show
from surrogate.cli.problem import FLAGS, open_predictor, problem_argument, problem_options, read_problem

if TYPE_CHECKING:
    from features.conv import Conv
    from surrogate.predictor import Predictor, Selection

MEASURED_TOP = 2
"""Candidates that --measure times, where --top does not say."""


@click.command(context_settings=FLAGS)
@problem_argument
@problem_options
@click.option("--workspace-limit", metavar="SIZE", help="As in 64MiB, 1GB or 1048576.")
@click.option("--deterministic", is_flag=True, help="Only algorithms whose two runs give the same bits.")
@click.option(
    "--top", type=click.IntRange(min=1), metavar="K", help="Show the first K; with --measure, time them."
)
@click.option("--measure", is_flag=True, help="Time the most promising on --device, and rank by that.")
@click.option("--device", type=click.Choice(["cudnn", "reference"]), help="What --measure times on.")
@output_options
def command(problem: tuple[str, ...], as_json: bool, as_csv: bool, **options: Any) -> None:
    """Rank the algorithms of PROBLEM by their predicted times, with 90 % intervals, workspaces and what is excluded.

    PROBLEM is a text, n32c256h14w14k256r3s3p1u1 (w=h, s=r, p=0, q=p, u=1, v=u, l=1, j=l, g=1 by default), or the flags
    -n -c -H -W -k -y -x -p -q -u -v -l -j -g after `--`. Exit status 1 where nothing is feasible.

    Example: seer select --gpu v100 --workspace-limit 64MiB n32c256h14w14k256r3s3p1u1
    """
    from features.errors import InputError
    from surrogate.serving.text import parse_bytes

    if bool(options["device"]) != options["measure"]:
        raise InputError(
            "--measure and --device go together: --measure --device cudnn, or --device reference"
        )
    conv = read_problem(problem, options)
    text = options["workspace_limit"]
    limits = {
        "workspace_limit": None if text is None else parse_bytes(text),
        "deterministic": options["deterministic"],
    }
    predictor = open_predictor(options)
    top, version = options["top"], options["library_version"]
    if options["measure"]:
        selection = _measured(conv, predictor, options["device"], top or MEASURED_TOP, limits, version)
    else:
        selection = predictor.select(conv, top=top, library_version=version, **limits)
    _print(selection, as_json=as_json, as_csv=as_csv)
    sys.exit(0 if selection.estimates else 1)


def _measured(
    conv: "Conv",
    predictor: "Predictor",
    device: str,
    count: int,
    limits: dict[str, Any],
    version: str | None,
) -> "Selection":
    """The ranking with the first ``count`` timed on the device."""
    from surrogate.autotune import autotune

    tuned = autotune(conv, device, count, predictor=predictor, **limits)
    ranked = predictor.select(conv, library_version=version, **limits)
    return ranked.with_measured(tuned.times_us)


def _print(selection: "Selection", *, as_json: bool, as_csv: bool) -> None:
    if as_json or as_csv:
        records = [one.to_dict() for one in selection.candidates]
        show(records, as_json=as_json, as_csv=as_csv, whole=selection.to_dict())
    else:
        click.echo(repr(selection))
