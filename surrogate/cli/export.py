"""``seer export``: write the picks of many problems for other programs."""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from surrogate.cli import options as shared
from surrogate.cli.options import COUNT, GPU, HELP, PATH, combined, limit_options, option, output_option
from surrogate.cli.problem import Options, setting_options, settings_of
from surrogate.features import InputError

if TYPE_CHECKING:
    from surrogate.prediction.export import Picks
    from surrogate.prediction.predictor import Predictor

FUNCTIONS = ("python", "triton")
MAX_LISTED = 3
"""Maximum number of problems that a line about a reason lists."""


@click.command()
@click.argument("bundle")
@combined(
    option("--problems", HELP["export"]["problems"], PATH, required=True, metavar="FILE"),
    option("--as form", HELP["export"]["as"], ("json", "c-header", *FUNCTIONS, "miopen-user-db"), required=True),
    option("--leaves", "For a function: maximum number of buckets of problems; a bucket has one answer (32).", COUNT),
    option("--top", "For triton: number of configurations per bucket (3).", COUNT, metavar="K"),
    option("--gpu", "The GPU to pick for, if the bundle has several.", GPU),
    option("--library", "Candidates of one library only, such as cudnn or miopen.", metavar="NAME"),
    option("--library-version", "Version of the library; by default the newest in the bundle.", metavar="V"),
    setting_options,
    limit_options,
    output_option("The file to write."),
)
def command(bundle: str, problems: Path, output: Path, **options: Any) -> None:
    """Pick the fastest candidate of every problem, as `seer select` does, and write the picks for other programs.

    BUNDLE is a folder, or the name of a GPU for its shipped bundles.

    json, c-header and miopen-user-db look up the listed problems. python and triton are functions for any problem:
    decision trees with a small loss of predicted time on the listed problems. The header of the file gives the loss, on
    these problems and on held-out shapes.

    A row is a text, an operator with its sizes, or only sizes (m,n,k or n,c,h,k,r). Settings in the row override the
    options. A file holds one family. The command lists problems without a pick on standard error, by reason, and exits
    with status 1.

    Examples:
      seer export bundle --problems problems.txt --as c-header -o picks.h
      seer export h100 --problems gemms.csv --as python --dtype fp8 -o g.py
      seer export matmul --problems shapes.csv --as triton --top 3 -o configs.py
    """
    from surrogate.dataset.files import write_text
    from surrogate.dataset.problem_list import read_list
    from surrogate.prediction.export import export, of_one_family, picks_for
    from surrogate.prediction.export_function import LEAVES, TOP, export_function
    from surrogate.prediction.results import Limits

    shared.refuse_input(output, problems)
    form, leaves, top = options["form"], options["leaves"], options["top"]
    if (leaves is not None and form not in FUNCTIONS) or (top is not None and form != "triton"):
        raise InputError("--leaves needs --as python or triton, --top needs triton; leave them out for a lookup")
    predictor = _predictor(bundle, options)
    family, settings = predictor.bundle.described_family, settings_of(options)
    listed = read_list(problems, family, predictor.default_math, settings, predictor.gpu)
    kept, left_out = of_one_family(listed)
    if not kept:
        raise InputError(f"{problems}: no row has a problem of a known family; give texts, or sizes")
    limits = Limits.of(options["workspace_limit"], options["deterministic"])
    name, version = Path(bundle).resolve().name, options["library_version"]
    picks = picks_for(predictor, kept, limits, library_version=version, name=name)
    for caveat in picks.caveats if len(picks.caveats) > 1 else ():
        shared.echo(f"seer export: {caveat}", err=True)
    where = {each.problem: each.where for each in reversed(listed)}
    further = {f"{where[problem]}: {problem}": reason for problem, reason in picks.left_out.items()}
    for line in _grouped({**left_out, **further}):
        shared.echo(f"seer export: left out {line}", err=True)
    if not picks.feasible:
        shared.echo(f"seer export: none of {len(picks.left_out)} problems has a pick; nothing is written", err=True)
        sys.exit(1)
    size = ""
    if form in FUNCTIONS:
        text, size = export_function(picks, form, leaves=leaves or LEAVES, top=top or TOP)
    else:
        text = export(picks, form)
    write_text(output, text)
    repeated = len(kept) - len(picks.feasible) - len(picks.left_out)
    shared.print_written(output, _summary(output, picks, len(left_out) + len(picks.left_out), repeated, size))
    sys.exit(1 if left_out or picks.left_out else 0)


def _grouped(reasons: Mapping[str, str]) -> Iterator[str]:
    """Yield one line for each reason: its problems, or their count and the first. Numbers do not tell reasons apart."""
    from surrogate.prediction.results import without_numbers

    groups: dict[str, list[str]] = {}
    for problem, reason in reasons.items():
        groups.setdefault(without_numbers(reason), []).append(problem)
    for problems in groups.values():
        count = len(problems) - MAX_LISTED
        further = f" and {count:,} more" if count > 0 else ""
        yield f"{', '.join(problems[:MAX_LISTED])}{further}: {reasons[problems[0]]}"


def _summary(output: Path, picks: "Picks", left_out: int, repeated: int, size: str) -> str:
    """Return the line about the written file."""
    count = len(picks.feasible)
    parts = [f"picks of {count} problem{'s' * (count != 1)}", *[f"{left_out} left out"] * bool(left_out)]
    parts += [f"{repeated} repeated"] * bool(repeated) + [size] * bool(size)
    return f"{output}: {'; '.join(parts)}"


def _predictor(bundle: str, options: Options) -> "Predictor":
    """Return the predictor. If BUNDLE is a GPU's name and --gpu is not given, the predictor is for that GPU."""
    from surrogate.prediction.shipped import bundle_path, is_path, load

    gpu, library = options["gpu"], options["library"]
    if gpu is None and not is_path(bundle) and not Path(bundle).exists():
        return load(bundle, library=library)
    return load(bundle_path(bundle), gpu=gpu, library=library)
