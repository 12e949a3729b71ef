"""What does the collector make of faults under it: wrong rows, hangs, left-over processes, lost rows, tracebacks?

Every fault of ``tests/collect/fake/faults.toml`` is tried at random moments of `seer collect` over the fake of the
whole measuring chain, and then the same command goes on without it. The fake's times are computed, no measurement: they
are compared with those of a run without a fault, and no time is kept. Linux with a C compiler.
"""

import sys
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click
import pandas as pd

from experiments.experiment import HOME, Outcome, in_one_line, write_outcome
from surrogate.features.errors import InputError
from tests.collect.fake.chain import FAKE, build, compiler
from tests.collect.fake.trial import rows, tried

KINDS = ("wrong_rows", "hangs", "left_processes", "lost_rows", "tracebacks")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--tries", default=5, show_default=True, type=click.IntRange(min=1), help="Of each fault.")
@click.option("--jobs", default=2, show_default=True, type=click.IntRange(min=1), help="Tries at a time.")
@click.option("--seed", default=0, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), default=HOME, help="Where tables/ lies.")
def main(tries: int, jobs: int, seed: int, out: Path) -> None:
    """Try every fault; exit status 1 where one led to a failure."""
    faults = tomllib.loads((FAKE / "faults.toml").read_text(encoding="utf-8"))["fault"]
    with in_one_line("collector_faults"), tempfile.TemporaryDirectory(prefix="seer-faults-") as name:
        if not compiler():
            raise InputError("the fake of the measuring chain needs Linux and a C compiler")
        home, library = Path(name), build(Path(name))
        tried(home / "whole", {}, library, "", rows(home))
        reference = rows(home / "whole")
        with ThreadPoolExecutor(jobs) as pool:
            futures = [
                pool.submit(tried, home / f"{at}-{number}", fault, library, f"{seed} {at} {number}", reference)
                for at, fault in enumerate(faults)
                for number in range(tries)
            ]
            results = pd.DataFrame([future.result() for future in futures])
    names = [fault["name"] for fault in faults for _ in range(tries)]
    named = results.assign(fault=names, failures=results.any(axis=1))
    table = named.groupby("fault", sort=False)[["failures", *KINDS]].sum().reset_index()
    table.insert(1, "tries", tries)
    write_outcome("collector_faults", Outcome(table, None, ""), out)
    click.echo(f"{table['failures'].sum()} of {len(names)} tries of {len(faults)} faults led to a failure")
    sys.exit(int(table["failures"].any()))


if __name__ == "__main__":
    main(prog_name="python -m experiments.collector_faults")
