"""``seer select``: pick the algorithm for a problem."""

import sys
from typing import TYPE_CHECKING, Any

import click

from surrogate.cli.options import COUNT, limit_options, option, output_options, show
from surrogate.cli.problem import FLAGS, Options, problem_options, read_problem, with_notes
from surrogate.features import InputError

if TYPE_CHECKING:
    from surrogate.cli.options import Form
    from surrogate.features.families import AnyProblem
    from surrogate.prediction.predictor import Predictor
    from surrogate.prediction.results import Selection

MEASURED_TOP = 2
"""Number of candidates that --measure times without --top."""


@click.command(context_settings=FLAGS)
@problem_options
@limit_options
@option("--top", "Show the first K; with --measure, time the first K.", COUNT, metavar="K")
@option("--measure", "Time the first candidates on --device, and rank by the measured times.", is_flag=True)
@option("--device", "The device for --measure.", ("cudnn", "cpu", "replay", "reference"))
@option("--recording", "The recorded run for --device replay.", metavar="RUN.jsonl")
@option("--no-cache", "With --measure: do not read or write the cache of measurements.", is_flag=True)
@output_options
def command(problem: tuple[str, ...], form: "Form", **options: Any) -> None:
    """Rank the algorithms of PROBLEM by predicted time, with 90 % intervals, workspaces and excluded algorithms.

    PROBLEM is a text, flags, or a line of MIOpenDriver. A text is n32c256h14w14k256r3s3p1u1 (w=h, s=r, p=0, q=p, u=1,
    v=u, l=1, j=l, g=1 by default), or another kernel with its name, gemm:m4096n4096k4096. Flags are -n -c -H -W -k -y
    -x -p -q -u -v -l -j -g. The exit status is 1 if no algorithm is feasible.

    --measure stores its times in the file that SEER_CACHE names, or in the user's cache folder. A later --measure does
    not repeat them on the same GPU, library version and problem.

    Examples:
      seer select --gpu v100 --workspace-limit 64MiB n32c256h14w14k256r3s3p1
      seer select --gpu t4 -- -n 32 -c 256 -H 14 -W 14 -k 256 -y 3 -x 3 -p 1 -q 1
    """
    if bool(options["device"]) != options["measure"]:
        raise InputError("--measure and --device need each other; give --measure --device cudnn, cpu or replay")
    parsed, predictor = read_problem(problem, options)
    if options["device"]:
        selection = _measured(parsed, predictor, options)
    else:
        names = ("workspace_limit", "deterministic", "top", "library_version")
        selection = predictor.select(parsed, **{name: options[name] for name in names})
    records = [candidate.to_dict() for candidate in selection.candidates]
    show(records, form, json_value=with_notes(selection.to_dict(), options["gpu"]), table=selection.table())
    sys.exit(0 if selection.estimates else 1)


def _measured(problem: "AnyProblem", predictor: "Predictor", options: Options) -> "Selection":
    """Return the ranking with the first candidates timed on the device."""
    from surrogate.collect.open_device import open_device
    from surrogate.prediction.autotune import MeasurementCache, autotune, with_attempts
    from surrogate.prediction.results import Limits

    device = options["device"]
    limits = {name: options[name] for name in ("workspace_limit", "deterministic")}
    tuned = autotune(
        problem,
        open_device(device, recording=options["recording"]) if device == "replay" else device,
        options["top"] or MEASURED_TOP,
        predictor=predictor,
        cache=MeasurementCache() if options["no_cache"] else None,
        **limits,
    )
    version = options["library_version"] or tuned.library_version
    if version != tuned.library_version:
        raise InputError(
            f"the device runs {tuned.library} {tuned.library_version}, not {version}; leave --library-version out"
        )
    return with_attempts(predictor.select(problem, library_version=version), tuned.tried, Limits.of(**limits))
