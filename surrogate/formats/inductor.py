"""PyTorch Inductor's logs of autotuned matrix products and of flex attention.

How to get one: run the program with TORCHINDUCTOR_MM_LOGGING_FILE=log.json (for attention
TORCHINDUCTOR_FLEX_ATTENTION_LOGGING_FILE) and ``torch.compile(..., mode="max-autotune")``. Disable the caches of
earlier runs with TORCHINDUCTOR_FORCE_DISABLE_CACHES=1. The log does not name the GPU: give --gpu. It does not name the
element type: keep one log per type.

Each kind of product (mm, addmm …) is a separate kernel; choose one with --name. Rows of library ``triton`` have
parameters: BLOCK_M, BLOCK_N, BLOCK_K, num_stages, num_warps and the other logged ones. Rows of ``cublas`` have no
parameters. The log does not distinguish templates of one configuration, or kernels of cuBLAS: the fastest time counts.
Tunings with symbolic sizes are skipped. For batched products (bmm, baddbmm) the log has batch, m and n, but no k.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Unpack

from surrogate.features.errors import InputError, parsed_json
from surrogate.formats import Format
from surrogate.formats.foreign_file import Paths, ReadLimits, read_bytes, readable
from surrogate.formats.imported import Imported, plural
from surrogate.formats.tuned import TunedKernel, TunedRow, is_time, one_kernel, outcome, tuned

_FLEX = ("B", "Hq", "Hkv", "seq_len_q", "seq_len_kv", "qk_head_dim", "v_head_dim")
_SIZES = {3: ("m", "k", "n"), len(_FLEX): _FLEX}
"""Names of the numbers in a key, by their count. Numbers of other keys are named size_0, size_1 …."""
_BATCHED = ("batch", "m", "n")
_WORD = re.compile(r"[^\s(),]+")
_Tuning = tuple[str, dict[str, int] | None, list[TunedRow]]
"""The measurements of a kernel on one problem. The sizes are None if one of them is symbolic."""


def read(paths: Paths, *, gpu: str, name: str | None = None, **limits: Unpack[ReadLimits]) -> Imported:
    """Read the configurations of one kernel. ``name`` chooses among kernels. Raises `InputError` with the file."""
    tunings: list[_Tuning] = []
    for path in map(Path, paths):
        with readable(path, "give the file that TORCHINDUCTOR_MM_LOGGING_FILE named"):
            for entry in parsed_json(read_bytes(path, **limits)):
                tunings += _tunings(entry, {"gpu": gpu, "origin": path.name})
    kernel = one_kernel({each for each, _, _ in tunings} or {"inductor_mm"}, name, paths[0])
    measured = [(sizes, outcomes) for each, sizes, outcomes in tunings if each == kernel]
    names = {tuple(sizes) for sizes, _ in measured if sizes is not None}
    if len(names) > 1:
        raise InputError(f"{paths[0]}: problems of {kernel} differ in their number of sizes; log one kernel a file")
    outcomes = [each for sizes, outcomes in measured if sizes is not None for each in outcomes]
    symbolic = sum(sizes is None for sizes, _ in measured)
    notes = [f"{plural(symbolic, 'tuning')} with symbolic sizes left out"] * bool(symbolic)
    return tuned(TunedKernel(kernel, next(iter(names), ())), outcomes, paths[0], notes)


FORMAT = Format("inductor", "PyTorch Inductor's log of autotuned matrix products", read)


def _tunings(entry: dict[str, Any], shared: dict[str, Any]) -> Iterator[_Tuning]:
    """Yield the tunings of a log entry. An entry that counts the calls of a compiled product has no tuning.

    A key is the text of a tuple: the numbers, with or without the kernel's type before them. The choices of attention
    hold its sizes.
    """
    for key, listed in entry.items():
        choices = [each for each in listed if each is not None] if isinstance(listed, list) else []
        if choices:
            words = [str(choices[0].get(size)) for size in _FLEX] if key == "choices" else _WORD.findall(key)
            texts = [word.strip("'\"") for word in words if word[0] in "'\""]
            kind = str(entry.get("kernel_type") or next(iter(texts), "mm"))
            numbers = words[len(texts) :]
            names = _BATCHED if "bmm" in kind else _SIZES.get(len(numbers), [f"size_{n}" for n in range(len(numbers))])
            given = {size: int(n) for size, n in zip(names, numbers, strict=True) if re.fullmatch(r"[0-9]{1,15}", n)}
            sizes = dict(sorted(given.items(), key=lambda item: "mnk".find(item[0])))
            outcomes = _outcomes(choices, {**shared, **sizes})
            yield f"inductor_{kind}", sizes if len(sizes) == len(names) else None, outcomes


def _outcomes(choices: list[dict[str, Any]], problem: dict[str, Any]) -> list[TunedRow]:
    """Return the choices of a problem. The fastest counts if several share the library and the parameters."""
    fastest: dict[tuple[Any, ...], Any] = {}
    others = {"type", "time", "kernel_type", *problem}
    for choice in choices:
        library = "cublas" if choice["type"] in ("aten", "extern") else str(choice["type"])
        names = [name for name in choice if library == "triton" and name not in others]
        key = (library, *((name, choice[name]) for name in names))
        fastest[key] = min(filter(is_time, (choice["time"], fastest.get(key))), default=choice["time"])
    return [
        outcome({**problem, "library": library, "algorithm": None if items else library}, dict(items), time_ms)
        for (library, *items), time_ms in fastest.items()
    ]
