"""The fake of the measuring chain on disk: its library, its profilers, the environment under which they stand in."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

FAKE = Path(__file__).parent
ROOT = FAKE.parents[2]
SOURCES = ("cuda.c", "cudnn.c")
CFLAGS = ("-std=gnu11", "-O1", "-ftree-vectorize", "-shared", "-fPIC", "-Wall", "-Werror")


def compiler() -> str | None:
    """The C compiler; None where there is none, or another system than Linux."""
    return (shutil.which("cc") or shutil.which("gcc")) if sys.platform == "linux" else None


def build(folder: Path) -> Path:
    """The fake libcudnn in ``folder``, which is libcuda too, beside bin/ with the profiler."""
    library = folder / "libcudnn_fake.so"
    command = [str(compiler()), *CFLAGS, "-o", str(library), *(str(FAKE / name) for name in SOURCES), "-lm"]
    subprocess.run(command, check=True)
    (folder / "libcuda.so.1").symlink_to(library)
    (folder / "bin").mkdir()
    program = folder / "bin" / "ncu"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -SE "{FAKE}/profilers/ncu.py" "$@"\n')
    program.chmod(0o755)
    return library


def environment(library: Path, state: Path) -> dict[str, str]:
    """What a process needs to meet the fake; ``state`` is the folder in which calls are counted across processes."""
    return {
        "SEER_CUDNN": str(library),
        "LD_LIBRARY_PATH": str(library.parent),
        "FAKE_STATE": str(state),
        "PYTHONPATH": os.pathsep.join([str(FAKE / "stand_ins"), str(ROOT)]),
        "PATH": os.pathsep.join([str(library.parent / "bin"), os.environ["PATH"]]),
    }
