"""``python -m tests.fuzz.bomb_process FOLDER NAME…``: read each bomb under a memory limit; a JSON line for each.

The limit is on the address space above what the imports took, so that what a reader asks for beyond it fails at once.
"""

import json
import resource
import sys
import time
from pathlib import Path

from tests.fuzz.bombs import BOMBS
from tests.fuzz.cases import run
from tests.fuzz.readers import READERS

ROOM_BYTES = 1 << 30


def main(folder: Path, names: list[str]) -> None:
    """Make and read the named bombs, one after the other, below one limit."""
    chosen = [bomb for bomb in BOMBS if bomb.name in names]
    paths = []
    for number, bomb in enumerate(chosen):
        (folder / str(number)).mkdir()
        paths.append(folder / str(number) / bomb.file)
        bomb.make(paths[-1])
    for bomb in chosen:  # imports, before the limit
        reader = READERS[bomb.reader]
        files = reader.seeds()[0]
        (folder / "seed").mkdir(exist_ok=True)
        path = folder / "seed" / next(iter(files))
        path.write_bytes(next(iter(files.values())))
        reader.read(path)
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    limit = _address_space_bytes() + ROOM_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for bomb, path in zip(chosen, paths, strict=True):
        start = time.perf_counter()
        outcome = run(READERS[bomb.reader], path)
        peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        record = {"name": bomb.name, "verdict": outcome.verdict, "text": outcome.text.replace(str(path), path.name),
                  "seconds": time.perf_counter() - start, "file_bytes": path.stat().st_size,
                  "above_mib": (peak_kib - before_kib) / 1024}  # fmt: skip
        print(json.dumps(record), flush=True)


def _address_space_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
