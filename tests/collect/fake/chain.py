"""Build the fake CUDA libraries, and return the environment in which a process uses them."""

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
    """Return the path of the C compiler; None if there is none or the system is not Linux."""
    return (shutil.which("cc") or shutil.which("gcc")) if sys.platform == "linux" else None


def build(folder: Path) -> Path:
    """Build the fake libcudnn, which is also libcuda, and bin/ncu in ``folder``; return the library's path."""
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
    """Return the environment for the fake libraries; files in ``state`` count calls across processes."""
    return {
        "SEER_CUDNN": str(library),
        "LD_LIBRARY_PATH": str(library.parent),
        "FAKE_STATE": str(state),
        "PYTHONPATH": os.pathsep.join([str(FAKE / "packages"), str(ROOT)]),
        "PATH": os.pathsep.join([str(library.parent / "bin"), os.environ["PATH"]]),
    }
