"""Files of few bytes that describe much: ``python -m tests.budgets [NAME…]`` prints what the commands need for each.

The table is `test_budgets.toml`. A file is made of (text, count) pieces: the text, repeated; its ``<i>`` and ``<j>``
become the number of the repeat and the next one.
"""

import bz2
import gzip
import importlib
import io
import json
import os
import resource
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from time import process_time
from typing import Any

CASES: Mapping[str, Mapping[str, Any]] = tomllib.loads(
    Path(__file__).with_name("test_budgets.toml").read_text(encoding="utf-8")
)


def _zipped(content: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("x/models/model.json", content)
    return out.getvalue()


def _onnx(content: bytes) -> bytes:
    import onnx

    return onnx.parser.parse_model(content.decode()).SerializeToString()


PACKED: Mapping[str, Callable[[bytes], bytes]] = {
    "": bytes,
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "zip": _zipped,
    "onnx": _onnx,
}


def file_content(case: Mapping[str, Any]) -> bytes:
    """Return the file of a case."""
    parts = [
        "".join(text.replace("<i>", str(i)).replace("<j>", str(i + 1)) for i in range(count))
        if "<i>" in text
        else text * count
        for text, count in case["parts"]
    ]
    return PACKED[case.get("packed", "")]("".join(parts).encode(case.get("encoding", "utf-8")))


def measured(case: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the exit status, the lines of standard error, and the peak MiB and CPU seconds of the case's command.

    The command runs in a fork, so that nothing is imported again.
    """
    file, errors = folder / case["file"], folder / "errors"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(file_content(case))
    child = os.fork()
    if not child:
        from surrogate.cli import main

        for target, stream in ((errors, 2), (folder / "output", 1)):
            os.dup2(os.open(target, os.O_CREAT | os.O_TRUNC | os.O_WRONLY), stream)
        resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
        words = case["command"].replace("{}", str(file)).replace("{out}", str(folder / "out.parquet")).split()
        if words == ["gpus"]:
            os.environ["SEER_GPUS"] = str(file)
        sys.argv = ["seer", *words]
        before, begun = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, process_time()
        status = 99
        try:
            main()
        except SystemExit as end:
            status = int(end.code or 0)
        finally:
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
            (folder / "measured").write_text(json.dumps([status, grown >> 10, process_time() - begun]))
            os._exit(0)
    os.waitpid(child, 0)
    status, mib, seconds = json.loads((folder / "measured").read_text())
    lines = errors.read_text(encoding="utf-8").splitlines()
    return {"status": status, "lines": lines, "file_mib": file.stat().st_size / 2**20, "mib": mib, "seconds": seconds}


def main() -> None:
    """Print a JSON line per case; without names, of every case."""
    for module in ("pandas", "yaml", "onnx.reference", "surrogate.network.read", "surrogate.formats.tensile"):
        importlib.import_module(module)  # before the forks
    os.environ.pop("SEER_GPUS", None)
    for name in sys.argv[1:] or CASES:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps({"name": name, **measured(CASES[name], Path(folder))}), flush=True)


if __name__ == "__main__":
    main()
