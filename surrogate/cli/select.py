"""``seer select``: the algorithm to run on a problem; and ``seer export``: those of many, for other programs."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import click

from surrogate.cli.options import COUNT, GPU, PATH, limit_options, option, output_option, output_options, said, show
from surrogate.cli.problem import FLAGS, Options, problem_options, read_problem, with_notes
from surrogate.features.errors import InputError

if TYPE_CHECKING:
    from surrogate.cli.options import Form
    from surrogate.features.families import AnyProblem
    from surrogate.prediction.predictor import Predictor
    from surrogate.prediction.results import Limits, Selection

MEASURED_TOP = 2
"""Candidates that --measure times, where --top does not say."""


class SelectOptions(Options):
    """What `command` gets beside PROBLEM and the form of the output."""

    workspace_limit: int | None
    deterministic: bool
    top: int | None
    measure: bool
    device: str | None
    recording: str | None
    no_cache: bool


@click.command(context_settings=FLAGS)
@problem_options
@limit_options
@option("--top", "Show the first K; with --measure, time them.", COUNT, metavar="K")
@option("--measure", "Time the most promising on --device, and rank by that.", is_flag=True)
@option("--device", "What --measure times on.", ("cudnn", "cpu", "replay", "reference"))
@option("--recording", "The run that --device replay serves.", metavar="RUN.jsonl")
@option("--no-cache", "Neither use measurements of earlier runs nor keep new ones.", is_flag=True)
@output_options
def command(problem: tuple[str, ...], form: "Form", **options: Unpack[SelectOptions]) -> None:
    """Rank the algorithms of PROBLEM by their predicted times, with 90 % intervals, workspaces and what is excluded.

    PROBLEM is a text, n32c256h14w14k256r3s3p1u1 (w=h, s=r, p=0, q=p, u=1, v=u, l=1, j=l, g=1 by default) or another
    kernel by its name, gemm:m4096n4096k4096; the flags -n -c -H -W -k -y -x -p -q -u -v -l -j -g; or a line as
    MIOpenDriver takes it. Exit status 1 where nothing is feasible.

    What --measure found is kept (in the file SEER_CACHE names, else in the user's cache folder) and takes the place
    of predictions from then on, for the same GPU, library version and problem.

    Examples:
      seer select --gpu v100 --workspace-limit 64MiB n32c256h14w14k256r3s3p1
      seer select --gpu t4 -- -n 32 -c 256 -H 14 -W 14 -k 256 -y 3 -x 3 -p 1 -q 1
    """
    from surrogate.prediction.results import Limits

    if bool(options["device"]) != options["measure"]:
        raise InputError("--measure and --device go together: --measure --device cudnn, cpu or replay")
    limits = Limits.of(options["workspace_limit"], options["deterministic"], options["top"])
    asked, predictor = read_problem(problem, options)
    if options["device"]:
        selection = _measured(asked, predictor, limits, options, device=options["device"])
    else:
        selection = _recalled(asked, predictor, limits, options)
    records = [candidate.to_dict() for candidate in selection.candidates]
    whole = with_notes(selection.to_dict(), options["gpu"])
    show(records, form, whole=whole, table=selection.table())
    sys.exit(0 if selection.estimates else 1)


def _recalled(problem: "AnyProblem", predictor: "Predictor", limits: "Limits", options: SelectOptions) -> "Selection":
    """The ranking, with the measured times of earlier runs where there are any."""
    from surrogate.prediction.autotune import TuningCache, default_path, recalled

    path = None if options["no_cache"] else default_path()
    cache = TuningCache(path) if path and path.is_file() else None
    return recalled(predictor, problem, limits, cache=cache, library_version=options["library_version"])


def _measured(
    problem: "AnyProblem", predictor: "Predictor", limits: "Limits", options: SelectOptions, *, device: str
) -> "Selection":
    """The ranking with its first few timed on the device."""
    from surrogate.collect.open_device import open_device
    from surrogate.prediction.autotune import TuningCache, autotune, with_attempts

    opened = open_device(device, recording=options["recording"]) if device == "replay" else device
    tuned = autotune(
        problem,
        opened,
        limits.top or MEASURED_TOP,
        predictor=predictor,
        workspace_limit=limits.workspace_bytes,
        deterministic=limits.deterministic,
        cache=TuningCache() if options["no_cache"] else None,
    )
    version = options["library_version"] or tuned.library_version
    if version != tuned.library_version:
        raise InputError(
            f"the device runs {tuned.library} {tuned.library_version}, not {version}; leave --library-version out"
        )
    ranked = predictor.select(problem, library_version=version)
    return with_attempts(ranked, tuned.tried, replace(limits, top=None))


FUNCTIONS = ("python", "triton")


@click.command()
@click.argument("bundle")
@option(
    "--problems",
    "Parquet or CSV table, JSON lines, one PROBLEM a line, or SEER's Test-set-II text.",
    PATH,
    required=True,
    metavar="FILE",
)
@option(
    "--as form",
    "A lookup of the listed problems: JSON, a C99 header, MIOpen's user find-db (bundles of MIOpen solvers). A"
    " function for any problem: python; triton, lists of triton.Config (described kernels).",
    ("json", "c-header", "python", "triton", "miopen-user-db"),
    required=True,
)
@option("--leaves", "Of a function: the most buckets of problems, each with its own answer (32).", COUNT)
@option("--top", "Of triton: configurations of a bucket (3).", COUNT, metavar="K")
@option("--gpu", "The GPU to pick for, where the bundle knows several.", GPU)
@option("--library-version", "Of the library; by default the newest that the bundle knows.", metavar="V")
@limit_options
@output_option("The file to write.")
def export(
    bundle: str,
    problems: Path,
    form: str,
    leaves: int | None,
    top: int | None,
    gpu: str | None,
    library_version: str | None,
    workspace_limit: int | None,
    deterministic: bool,
    output: Path,
) -> None:
    """Pick the fastest candidate of every problem and write the picks for other programs, of any family of kernels.

    BUNDLE is a folder, or a GPU's name for the bundle that ships for it.

    json, c-header and miopen-user-db look up the listed problems. python and triton are functions for any problem:
    decision trees that lose as little predicted time as they can on the listed ones. Their heads say how much, there
    and on shapes left out.

    A table has the sizes and settings of the bundle's family as columns, or a column problem with texts. Exit status 1
    where no problem has a pick within the limits; problems without one are counted.

    Examples:
      seer export bundle --problems problems.txt --as c-header -o picks.h
      seer export h100 --problems gemms.csv --as python --leaves 16 -o g.py
      seer export matmul --problems shapes.csv --as triton --top 3 -o configs.py
    """
    from surrogate.dataset.files import write_text
    from surrogate.prediction.export import export as written
    from surrogate.prediction.export import picks_for
    from surrogate.prediction.export_function import LEAVES, TOP, export_function

    if (leaves is not None and form not in FUNCTIONS) or (top is not None and form != "triton"):
        raise InputError("--leaves goes with --as python and triton, --top with triton; a lookup has neither")
    predictor, listed, others, name = _listed(bundle, problems, gpu)
    picks = picks_for(
        predictor,
        listed,
        workspace_limit=workspace_limit,
        deterministic=deterministic,
        library_version=library_version,
        name=name,
    )
    if not picks.feasible:
        click.echo(f"seer export: none of {len(picks.selections)} problems has a pick", err=True)
        sys.exit(1)
    size = ""
    if form in FUNCTIONS:
        text, size = export_function(picks, form, leaves=leaves or LEAVES, top=top or TOP)
    else:
        text = written(picks, form)
    write_text(output, text)
    left = len(picks.infeasible)
    count = len(picks.feasible)
    none = f"; {left} {'has' if left == 1 else 'have'} none" if left else ""
    other = f"; {others} left out, which the bundle does not know" if others else ""
    said(output, f"{output}: picks of {count} problem{'s' * (count != 1)}{none}{other}{f'; {size}' if size else ''}")


def _listed(bundle: str, problems: Path, gpu: str | None) -> "tuple[Predictor, list[AnyProblem], int, str]":
    """What answers, the distinct problems in a file, how many more of other families it holds, the bundle's name."""
    from surrogate.dataset.problem_list import of_one_family, read_list
    from surrogate.features.families import DEFAULT_FAMILY, FAMILIES, family_of
    from surrogate.prediction.shipped import bundle_path, is_path, load

    # 1. A GPU's name in the place of BUNDLE is the GPU that is asked about, unless --gpu names another. Its bundle is
    #    that of the convolutions where the list holds any, else the one that answers the first problem.
    named = None if is_path(bundle) or Path(bundle).exists() else bundle
    listed = read_list(problems) if named else []
    distinct = [each.problem for each in listed if each.problem is not None]
    first = min(distinct, key=lambda problem: family_of(problem).name != DEFAULT_FAMILY, default=None)
    path = bundle_path(bundle, first)
    predictor = load(path, gpu=gpu or named)
    # 2. Rows of a table are of the one family asked about, by default convolutions.
    names = [family_of(first).name] if first else [*predictor.bundle.parts]
    family = predictor.bundle.described or FAMILIES[names[0] if len(names) == 1 else DEFAULT_FAMILY]
    if not listed or family.name != DEFAULT_FAMILY:
        listed = read_list(problems, family, predictor.target)
    return predictor, *of_one_family(listed, names, problems), path.resolve().name
