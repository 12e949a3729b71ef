"""Helpers of the fake ncu: parse its options, run the program, and read the launches that it logged.

The fake CUDA runtime appends each launch between cudaProfilerStart and Stop to FAKE_PROFILE. FAKE_PROFILER makes the
profiler fail: ``denied``, ``hang``, or ``fails:WORD``, which fails if WORD is in the command line.
"""

import os
import subprocess
import sys
import time
from collections import namedtuple
from pathlib import Path

DENIED = (
    "ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters on the target"
    " device 0. For instructions on enabling permissions and to get more information see"
    " https://developer.nvidia.com/ERR_NVGPUCTRPERM"
)
CAPABILITY = {"h100": "9.0", "v100": "7.0", "gb202": "12.0"}[os.environ.get("FAKE_GPU", "h100")]
ORDER = os.environ.get("FAKE_PROFILER", "")


Launch = namedtuple("Launch", "kind name grid block registers fixed dynamic ns flops bytes")
"""One line of the log."""


def options(words: list[str], valued: set[str], plain: set[str]) -> tuple[dict[str, str], list[str]]:
    """Return the profiler's options, and the program with its arguments; exit on an unknown option."""
    found: dict[str, str] = {}
    at = 0
    while at < len(words) and words[at].startswith("-"):
        name, equals, value = words[at].partition("=")
        if name in plain:
            found[name] = ""
        elif name in valued:
            at += not equals
            found[name] = value if equals else words[at]
        else:
            sys.exit(f"==ERROR== unrecognised option '{words[at]}'. Use --help for further details.")
        at += 1
    return found, list(words[at:])


def run(program: list[str], log: Path, from_start: bool) -> int:
    """Run the program with a log of its launches and return its exit status."""
    log.unlink(missing_ok=True)
    if ORDER == "hang":
        time.sleep(600)
    if ORDER.startswith("fails:") and any(ORDER[6:] in word for word in sys.argv):
        sys.exit("==ERROR== An internal error occurred.")
    environment = {**os.environ, "FAKE_PROFILE": str(log)}
    if from_start:
        environment["FAKE_PROFILE_FROM_START"] = "1"
    return subprocess.run(program, env=environment, check=False).returncode


def launches(log: Path) -> list[Launch]:
    """Return the logged launches in order."""
    found = []
    for line in log.read_text(encoding="utf-8").splitlines() if log.exists() else []:
        kind, name, *numbers = line.split("\t")
        sizes = [int(number) for number in numbers[:9]]
        found.append(Launch(kind, name, tuple(sizes[:3]), tuple(sizes[3:6]), *sizes[6:], *map(float, numbers[9:])))
    return found
