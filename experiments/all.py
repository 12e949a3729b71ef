"""Run every experiment in a process of its own, several at a time, and record commands and times of the runs."""

import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

import click

from experiments.catalogue import ALONE, NAMES, experiment, record_times
from experiments.experiment import HOME, SKIPPED, in_one_line, read_sources, shared_options
from surrogate.features.errors import InputError, nearest

PROJECT = HOME.parent


@dataclass(frozen=True, slots=True)
class Finished:
    """The result of one experiment's process: exit status, standard output, standard error, seconds."""

    name: str
    status: int
    output: str
    complaint: str
    seconds: float


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@shared_options
@click.option("--only", default="", metavar="A,B", help="Run only these experiments.")
@click.option("--list", "listed", is_flag=True, help="List the experiments and their questions without a run.")
@click.option("--jobs", default=2, show_default=True, type=click.IntRange(min=1), help="Number of parallel processes.")
def main(
    quick: bool, data: Path, use: tuple[str, ...], only: str, listed: bool, seed: int, jobs: int, out: Path
) -> None:
    """Run the experiments. If files are missing, an experiment is skipped with one line.

    Every experiment uses one thread, so a seed gives the same bits for every value of --jobs. `speed` and
    `large_inputs` measure time, so they run last and alone. Exit status 0; 1 if an experiment was skipped or failed; 2
    for a user's error.
    """
    with in_one_line("experiments"):
        names, sources = chosen(only), read_sources(data, use)
    if listed:
        for name in names:
            missing = experiment(name).missing(sources)
            click.echo(f"{name}: {experiment(name).question}{' (files missing)' if missing else ''}")
        return
    options = [*(["--quick"] if quick else []), *(["--seed", str(seed)] if seed else [])]
    uses = [word for text in use for word in ("--use", text)]
    # Processes start in the project's folder, so they need absolute paths.
    places = ["--data", str(data.resolve()), "--out", str(out.resolve())]
    for name, path in sources.others.items():
        places += ["--use", f"{name}={path.resolve()}"]
    runs = {}
    for done in run_all(names, [*options, *places], jobs):
        if done.status:
            lines = done.complaint.strip().splitlines() or [f"{done.name}: exit status {done.status}"]
            click.echo(lines[-1], err=True)
            continue
        command = " ".join([f"python -m experiments.{done.name}", *options, *uses])
        runs[done.name] = (command, done.seconds)
        click.echo(f"{done.name} ({done.seconds:.0f} s):\n{done.output}\n")
    with in_one_line("experiments"):
        record_times(out / "tables" / "run_times.csv", runs)
    sys.exit(SKIPPED if len(runs) < len(names) else 0)


def chosen(only: str) -> list[str]:
    """Return the names in the text of ``--only``, or all for an empty text. Raises `InputError` for an unknown name."""
    requested = [name.strip() for name in only.split(",") if name.strip()]
    for name in requested:
        if name not in NAMES:
            raise InputError(f"experiment {name!r} is unknown; give one of {', '.join(NAMES)}{nearest(name, NAMES)}")
    return [name for name in NAMES if not requested or name in requested]


def run_all(names: list[str], options: list[str], jobs: int) -> Iterator[Finished]:
    """Run ``jobs`` processes at a time; yield the results in order. The experiments of `ALONE` run after the others."""
    with ThreadPoolExecutor(jobs) as pool:
        for together in ([name for name in names if name not in ALONE], *([name] for name in names if name in ALONE)):
            yield from pool.map(_run_one, together, repeat(options))  # an interrupt cancels waiting processes


def _run_one(name: str, options: list[str]) -> Finished:
    began = time.monotonic()
    command = [sys.executable, "-m", f"experiments.{name}", *options]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - began
    return Finished(name, done.returncode, done.stdout.strip(), done.stderr, seconds)


if __name__ == "__main__":
    main(prog_name="python -m experiments.all")
