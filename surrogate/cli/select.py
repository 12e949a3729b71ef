"""``seer select``: the algorithm to run on a problem."""

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from surrogate.cli.options import output_options, show
from surrogate.cli.problem import FLAGS, open_predictor, problem_argument, problem_options, read_problem

if TYPE_CHECKING:
    from surrogate.features.conv import Conv
    from surrogate.prediction.cache import Tuning
    from surrogate.prediction.limits import Limits
    from surrogate.prediction.predictor import Predictor, Selection

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
@click.option("--no-cache", is_flag=True, help="Neither use measurements of earlier runs nor keep new ones.")
@output_options
def command(problem: tuple[str, ...], as_json: bool, as_csv: bool, **options: Any) -> None:
    """Rank the algorithms of PROBLEM by their predicted times, with 90 % intervals, workspaces and what is excluded.

    PROBLEM is a text, n32c256h14w14k256r3s3p1u1 (w=h, s=r, p=0, q=p, u=1, v=u, l=1, j=l, g=1 by default), the flags
    -n -c -H -W -k -y -x -p -q -u -v -l -j -g, or a line as MIOpenDriver takes it. Exit status 1 where nothing is
    feasible.

    What --measure found is kept (in the folder SEER_CACHE names, else in the user's cache folder) and takes the place
    of predictions from then on, for the same GPU, library version and problem.

    Example: seer select --gpu v100 --workspace-limit 64MiB n32c256h14w14k256r3s3p1u1
    """
    from surrogate.features.errors import InputError
    from surrogate.prediction.limits import checked_limits

    if bool(options["device"]) != options["measure"]:
        raise InputError(
            "--measure and --device go together: --measure --device cudnn, or --device reference"
        )
    conv = read_problem(problem, options)
    limits = checked_limits(options["workspace_limit"], options["deterministic"], options["top"])
    predictor = open_predictor(options)
    find = _measured if options["measure"] else _recalled
    selection = find(conv, predictor, limits, options)
    records = [candidate.to_dict() for candidate in selection.candidates]
    shown, whole = selection.table(), selection.to_dict()
    show(records, as_json=as_json, as_csv=as_csv, whole=whole, table=shown)
    sys.exit(0 if selection.estimates else 1)


def _recalled(conv: "Conv", predictor: "Predictor", limits: "Limits", options: dict[str, Any]) -> "Selection":
    """The ranking, with the measured times of earlier runs where there are any."""
    from surrogate.prediction.recall import recall

    known = {} if options["no_cache"] else _known(conv)
    return recall(predictor, conv, known, limits=limits, library_version=options["library_version"])


def _known(conv: "Conv") -> "Mapping[str, Mapping[str, Tuning]]":
    """What the user's cache holds of the problem; a cache that cannot be read is one warning, and no answer is lost."""
    from surrogate.features.errors import InputError
    from surrogate.prediction.cache import FILE_NAME, cache_folder, tunings_of, warn_once

    folder = cache_folder()
    try:
        return tunings_of(folder / FILE_NAME, conv) if folder else {}
    except (InputError, OSError) as error:
        reason = f"{folder}: {error.strerror}" if isinstance(error, OSError) else str(error)
        warn_once(f"{reason}; measurements of earlier runs are left aside")
        return {}


def _measured(conv: "Conv", predictor: "Predictor", limits: "Limits", options: dict[str, Any]) -> "Selection":
    """The ranking with its first few timed on the device."""
    from surrogate.features.errors import InputError
    from surrogate.prediction.autotune import autotune
    from surrogate.prediction.cache import TuningCache
    from surrogate.prediction.recall import with_attempts

    settings: dict[str, Any] = {
        "workspace_limit": limits.workspace_bytes,
        "deterministic": limits.deterministic,
    }
    if options["no_cache"]:
        settings["cache"] = TuningCache()  # in memory
    tuned = autotune(conv, options["device"], limits.top or MEASURED_TOP, predictor=predictor, **settings)
    version = options["library_version"] or tuned.library_version
    if version != tuned.library_version:
        raise InputError(
            f"the device runs {tuned.library} {tuned.library_version}, not {version}; leave --library-version out"
        )
    ranked = predictor.select(conv, library_version=version)
    return with_attempts(ranked, tuned.tried, replace(limits, top=None))
