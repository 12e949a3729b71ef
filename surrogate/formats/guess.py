"""What a file looks like by its beginning: the hint for a user who named the wrong format."""

import re
from collections.abc import Sequence
from pathlib import Path

from surrogate.features.errors import InputError
from surrogate.formats.foreign_file import chunks

_LOOKED_AT_BYTES = 1 << 20
_MARKS = (
    ("seer import seer-xls", rb"\A(\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1|PK\x03\x04)"),
    ("seer data check", rb"\APAR1"),
    ("seer trace summary", rb'\ASQLite format 3|"traceEvents"'),
    ("seer import cudnn-scope", rb'"benchmarks"\s*:|CUDNN_CONV_'),
    ("seer import miopen", rb"\A\d+(-\d+){2,3}-\d+x\d+(x\d+)?-[^\n]*="),
    ("seer import lin-csv", rb"\bkernel_runtime\b"),
    ("seer import ncu", rb'(?m)^==PROF==|^"?ID"?,[^\n]*Kernel Name'),
    (
        "seer import nvprof",
        rb"(?m)NVPROF is profiling|Registers Per Thread\"?,|Regs\*|^\"?Device\"?,\"?Context\"?,",
    ),
)
"""(command that reads such files, what stands in their first megabyte); the first that fits counts."""


def command_for(path: str | Path) -> str:
    """The command that reads files which begin like ``path``, or nothing where it looks like none of them."""
    try:
        start = next(chunks(path), b"")[:_LOOKED_AT_BYTES]
    except InputError:
        return ""
    if start[:2] in (b"\xff\xfe", b"\xfe\xff"):
        start = start.decode("utf-16", "replace").encode()
    start = start.removeprefix(b"\xef\xbb\xbf").lstrip()
    return next((command for command, mark in _MARKS if re.search(mark, start)), "")


def hint(paths: Sequence[str | Path], message: str, command: str) -> str:
    """``; it looks like a file for …`` where the file that ``message`` names is one for another than ``command``."""
    named = next((path for path in paths if str(path) in message), paths[0])
    other = command_for(named)
    return f"; it looks like a file for `{other}`" if other and other != command else ""
