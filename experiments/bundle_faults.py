"""Can a changed bundle or a hostile archive do harm?

Can a changed bundle or a hostile archive do harm? Parts of shipped bundles are changed, their hashes renewed, and
questions asked; archives that unpack to far more than they hold are read. Nothing but a refusal in one line or finite
times may follow.
"""

import bz2
import gzip
import io
import resource
import shutil
import tarfile
import time
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pandas as pd

from experiments.experiment import Effort, Outcome, program
from experiments.sources import Sources
from surrogate.collect import log
from surrogate.formats import FORMATS
from surrogate.network.exported import read_exported
from surrogate.trace.events.read import read_trace, trace_files
from tests.bundle.changed import BUNDLES, ask, bundle_files, changed, outcome_of
from tests.damage import write

TRIES, QUICK_TRIES = 2000, 120
BLANKS = 300 << 20
"""Bytes that a hostile archive unpacks to."""
MEMBERS = {
    "links": (tarfile.SYMTYPE, 0, 1), "devices": (tarfile.CHRTYPE, 0, 1),
    "20,000 members": (tarfile.REGTYPE, 0, 20_000), "a long name": (tarfile.XHDTYPE, 200 << 20, 1),
    "blanks": (tarfile.REGTYPE, BLANKS, 1),
}  # fmt: skip
"""A hostile tar archive → type, size and number of its members."""


def archives() -> Iterator[tuple[str, bytes]]:
    """Names and contents of files that are hostile."""
    blanks = b" " * BLANKS
    for name in ("trace.json.gz", "log.jsonl.gz"):
        yield f"blanks.{name}", gzip.compress(blanks, 9)
    yield "blanks.fdb.txt.bz2", bz2.compress(blanks)
    true_size, small_size = (size.to_bytes(4, "little") for size in (BLANKS, 10))
    for name in ("whl", "pt2", "xlsx"):
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
            for member in ("h/gemm/vllm/1.0/gemm_perf.parquet", "m/models/model.json", "xl/workbook.xml"):
                file.writestr(member, blanks)
        yield f"blanks.{name}", out.getvalue()
        yield f"blanks, said to be 10 bytes.{name}", out.getvalue().replace(true_size, small_size)
    for name, (kind, size, count) in MEMBERS.items():
        out = io.BytesIO()
        with gzip.GzipFile(fileobj=out, mode="wb", mtime=0) as file:
            for number in range(count):
                header = tarfile.TarInfo(f"/{number}.json")
                header.type, header.size, header.linkname = kind, size, "/etc/passwd"
                file.write(header.tobuf())
            file.write(blanks[:size] + bytes(1024))
        yield f"{name}.tar.gz", out.getvalue()


def ranks(path: Path) -> None:
    """The traces in an archive."""
    with trace_files([path]) as files:
        for file in files:
            file.read()


READERS: dict[str, Callable[[Path], object]] = {
    "trace.json.gz": read_trace, "log.jsonl.gz": log.read, "tar.gz": ranks, "pt2": read_exported,
    "fdb.txt.bz2": lambda path: FORMATS["miopen"].read([path], gpu="mi210"),
    "whl": lambda path: FORMATS["aiconfigurator"].read([path], family="gemm"),
    "xlsx": lambda path: FORMATS["seer-xls"].read([path], gpu="titan-xp"),
}  # fmt: skip


def run(sources: Sources, effort: Effort) -> Outcome:
    """Tries by fault: how many were answered, refused, or ended otherwise; the slowest, and the process's memory."""
    records = []

    def tried(fault: str, call: Callable[[], object], number: int = 0) -> None:
        effort.tick(fault)
        begun = time.process_time()
        outcome = outcome_of(call)
        records.append({"fault": fault, "outcome": outcome, "seconds": time.process_time() - begun, "try": number})

    with TemporaryDirectory() as folder:
        for number in range(QUICK_TRIES if effort.quick else TRIES):
            random = Random(f"{effort.seed} {number}")
            name = random.choice(list(BUNDLES))
            fault, files = changed(bundle_files(name), BUNDLES[name][0], random)
            place = write(files, Path(folder) / str(number))
            tried(fault, partial(ask, place, *BUNDLES[name]), number)
            shutil.rmtree(place)
        for name, content in archives():
            (Path(folder) / name).write_bytes(content)
            reader = next(read for ending, read in READERS.items() if name.endswith(ending))
            tried(f"archive: {name}", partial(reader, Path(folder) / name))
    tries = pd.DataFrame(records)
    failed = ~tries["outcome"].isin(("answered", "refused"))
    kinds = tries.assign(
        tries=1, answered=tries["outcome"] == "answered", refused=tries["outcome"] == "refused", failures=failed
    ).groupby("fault", sort=False)
    table = kinds[["tries", "answered", "refused", "failures"]].sum().assign(most_cpu_s=kinds["seconds"].max())
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    wrong = tries[failed].drop_duplicates("outcome")
    listed = "".join(f"\n{row['fault']} (try {row['try']}): {row['outcome']}" for _, row in wrong.iterrows())
    answer = f"{failed.sum()} of {len(tries):,} faults did more than be refused or answered with finite times;"
    return Outcome(table.reset_index(), None, f"{answer} the process took {peak_mib:,.0f} MiB at most.{listed}")


EXPERIMENT = program(run)
