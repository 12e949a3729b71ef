"""``python -m tests.fuzz --count 2000``: damaged files for every reader, and a table of what became of them.

Each reader runs in a process of its own with bounded memory, so that a fault in native code, a hang or a lack of
memory ends that process only; the inputs of crashes and hangs are kept.
"""

import argparse
import csv
import io
import json
import os
import queue
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from surrogate.dataset.atomic import write_text
from tests.fuzz.cases import all_seeds, damaged_files, extreme_files, run, write
from tests.fuzz.readers import READERS, Reader

MEMORY_LIMIT_BYTES = 8 << 30
VERDICTS = ("refused", "read", "crashed", "hung")
COLUMNS = ("reader", "seed", "tried", *VERDICTS, "peak_mib", "slowest_s")
SILENCE_SECONDS = 30.0
"""A process that says nothing for so long hangs in native code."""


@dataclass(slots=True)
class Tally:
    """What became of one reader's inputs."""

    verdicts: Counter[str] = field(default_factory=Counter)
    peak_mib: float = 0.0
    slowest_s: float = 0.0
    findings: Counter[str] = field(default_factory=Counter)


def main() -> None:
    """Fuzz the chosen readers and print the table; exit 1 where anything crashed or hung."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--count", type=int, default=500, help="damaged files per reader")
    parser.add_argument("--seed", type=int, default=0, help="another seed draws other damage")
    parser.add_argument("--reader", action="append", help="part of a reader's name; repeat for several")
    parser.add_argument("--no-extremes", action="store_true", help="leave out inputs of extreme size")
    parser.add_argument(
        "--keep", type=Path, default=Path(tempfile.gettempdir()) / "fuzz", help="where crashes go"
    )
    parser.add_argument(
        "--csv", type=Path, metavar="FILE", help="write the table there as well, its seed beside it"
    )
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--first", type=int, default=0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        work(READERS[given.worker], given)
        sys.stdout.flush()
        os._exit(0)  # threads of native code that a damaged file left behind must not spoil the end
    chosen = [r for r in READERS.values() if not given.reader or any(part in r.name for part in given.reader)]
    tallies = {}
    print(
        f"{'reader':<30}{'tried':>7}{'refused':>9}{'read':>7}{'crashed':>9}{'hung':>6}{'peak MiB':>10}{'slowest s':>11}"
    )
    for reader in chosen:
        if reader.missing:
            print(f"{reader.name:<30}  left out: no {reader.missing}")
            continue
        tallies[reader.name] = tally = watch(reader, given)
        v = tally.verdicts
        print(
            f"{reader.name:<30}{v.total():>7}{v['refused']:>9}{v['read']:>7}{v['crashed']:>9}{v['hung']:>6}"
            f"{tally.peak_mib:>10.0f}{tally.slowest_s:>11.1f}",
            flush=True,
        )
    if given.csv:
        write_csv(given.csv, tallies, given.seed)
    for name, tally in tallies.items():
        for finding, count in tally.findings.most_common():
            print(f"{name}: {count} × {finding}")
    sys.exit(any(t.verdicts["crashed"] or t.verdicts["hung"] for t in tallies.values()))


def write_csv(path: Path, tallies: Mapping[str, Tally], seed: int) -> None:
    """A row per reader; readers that the file holds already are replaced, so that runs of parts make one table."""
    rows: dict[str, dict[str, object]] = {}
    if path.exists():
        with path.open(newline="", encoding="utf-8") as file:
            rows = {row["reader"]: dict(row) for row in csv.DictReader(file)}
    for name, tally in tallies.items():
        counts = {verdict: tally.verdicts[verdict] for verdict in VERDICTS}
        rows[name] = {
            "reader": name, "seed": seed, "tried": tally.verdicts.total(), **counts,
            "peak_mib": f"{tally.peak_mib:.0f}", "slowest_s": f"{tally.slowest_s:.1f}",
        }  # fmt: skip
    lines = io.StringIO()
    writer = csv.DictWriter(lines, list(COLUMNS), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows[name] for name in READERS if name in rows)
    write_text(path, lines.getvalue())


def work(reader: Reader, given: argparse.Namespace) -> None:
    """The process that reads: a JSON line before and after each input, from number ``first`` on."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))
    valid = all_seeds(reader, real=True)
    named = [(str(n), n) for n in range(given.count)]
    extreme = [] if given.no_extremes else list(dict(extreme_files(reader, valid)))
    with tempfile.TemporaryDirectory() as folder:
        for at, files in enumerate(valid):  # the seeds must be good, and imports count to the baseline
            outcome = run(reader, write(files, _empty(Path(folder) / "seed"), reader))
            if outcome.verdict != "read":
                raise SystemExit(f"{reader.name}: seed {at} is {outcome.verdict}: {outcome.text}")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for at, name in enumerate([*(n for n, _ in named), *extreme]):
            if at < given.first:
                continue
            files = (
                damaged_files(reader, valid, at, given.seed)
                if at < given.count
                else dict(extreme_files(reader, valid))[name]
            )
            path = write(files, _empty(Path(folder) / "case"), reader)
            _say({"at": at, "name": name, "path": str(path)})
            outcome = run(reader, path)
            if outcome.verdict in ("crashed", "hung"):
                _keep(Path(folder) / "case", given.keep, reader, name)
            peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
            text = outcome.text.replace(folder, "")
            _say({"verdict": outcome.verdict, "text": text, "seconds": outcome.seconds, "peak": peak})


def _empty(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


def _keep(case: Path, keep: Path, reader: Reader, name: str) -> None:
    target = keep / "".join(c if c.isalnum() else "-" for c in f"{reader.name} {name}")
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(case, target)


def _say(record: dict[str, object]) -> None:
    print(json.dumps(record), flush=True)


def watch(reader: Reader, given: argparse.Namespace) -> Tally:
    """Run the reader's process, anew after each death, until every input was tried."""
    tally, first = Tally(), 0
    while first is not None:
        first = _watch_once(reader, given, first, tally)
    return tally


def _watch_once(reader: Reader, given: argparse.Namespace, first: int, tally: Tally) -> int | None:
    """The number to go on at after the process died, or None at the end."""
    command = [sys.executable, "-m", "tests.fuzz", "--worker", reader.name, "--count", str(given.count), "--seed",
               str(given.seed), "--first", str(first), "--keep", str(given.keep)]  # fmt: skip
    command += ["--no-extremes"] if given.no_extremes else []
    child = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    lines: queue.Queue[str] = queue.Queue()
    errors: list[str] = []
    threading.Thread(target=lambda: [*map(lines.put, child.stdout or ()), lines.put("")], daemon=True).start()
    threading.Thread(target=lambda: errors.extend(child.stderr or ()), daemon=True).start()
    current: dict[str, object] | None = None
    while True:
        try:
            line = lines.get(timeout=SILENCE_SECONDS if current else 300)
        except queue.Empty:
            child.kill()
            break
        if not line:
            break
        record = json.loads(line)
        if "at" in record:
            current = record
            continue
        _count(tally, record["verdict"], record["text"], str(current["name"]) if current else "")
        tally.slowest_s = max(tally.slowest_s, record["seconds"])
        tally.peak_mib = max(tally.peak_mib, record["peak"])
        current = None
    code = child.wait()
    if current is None:
        if code:
            tally.verdicts["crashed"] += 1
            tally.findings[f"no run: {(errors or [f'its process ended with {code}'])[-1].strip()}"] += 1
        return None
    killed = code == -9
    path = Path(str(current["path"]))
    folder = path if reader.folder else path.parent
    if folder.is_dir():
        _keep(folder, given.keep, reader, str(current["name"]))
    _count(tally, "hung" if killed else "crashed", f"process ended with {code}", str(current["name"]))
    at = current["at"]
    assert isinstance(at, int)
    return at + 1


def _count(tally: Tally, verdict: str, text: str, name: str) -> None:
    tally.verdicts[verdict] += 1
    if verdict in ("crashed", "hung"):
        tally.findings[
            f"{verdict}: {text} (as case {name})" if not name.isdigit() else f"{verdict}: {text}"
        ] += 1


if __name__ == "__main__":
    main()
