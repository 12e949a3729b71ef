"""PyTorch Inductor's log of autotuned matrix products, and that of flex attention.

How to get one: run the program with TORCHINDUCTOR_MM_LOGGING_FILE=log.json (for attention
TORCHINDUCTOR_FLEX_ATTENTION_LOGGING_FILE) and ``torch.compile(..., mode="max-autotune")``, without caches of earlier runs
(TORCHINDUCTOR_FORCE_DISABLE_CACHES=1). The log does not tell the GPU: give --gpu. It does not tell the element type
either, so keep a log for each.

Rows of library ``triton`` have parameters: BLOCK_M, BLOCK_N, BLOCK_K, num_stages, num_warps and what else is logged.
Those of ``cublas`` have none; of several the fastest counts. Tunings with symbolic sizes are left out. Products with a
batch are logged with the batch in the place of m and m in that of k, so log programs without them.
"""

import re
from pathlib import Path
from typing import Any, NamedTuple, Unpack

from surrogate.features.errors import InputError
from surrogate.formats import Format
from surrogate.formats.foreign_file import Limits, Paths, read_bytes
from surrogate.formats.imported import Imported, plural
from surrogate.formats.tuned import Outcome, is_time, one_kernel, outcome, parsed_json, tuned

_REMEDY = "give the file that TORCHINDUCTOR_MM_LOGGING_FILE named"
_ORDER = ("m", "n", "k")
_FLEX = ("B", "Hq", "Hkv", "seq_len_q", "seq_len_kv", "qk_head_dim", "v_head_dim")
_SIZES = {3: ("m", "k", "n"), len(_FLEX): _FLEX}
"""Names of a key's numbers, in its order, by their count; others are size_0, size_1 …."""
_OTHERS = ("type", "time", "kernel_type")
_WORD = re.compile(r"[^\s(),]+")


class _Tuning(NamedTuple):
    """The choices for one problem; ``sizes`` is None where one of them is symbolic."""

    kernel: str
    sizes: dict[str, int] | None
    choices: list[dict[str, Any]]
    origin: str


def read(paths: Paths, *, gpu: str, name: str | None = None, **limits: Unpack[Limits]) -> Imported:
    """The configurations of one kernel; ``name`` chooses among kernels. Raises `InputError` naming file and entry."""
    tunings: list[_Tuning] = []
    for path in map(Path, paths):
        log = parsed_json(read_bytes(path, **limits), path, _REMEDY)
        if not isinstance(log, list) or not all(isinstance(entry, dict) for entry in log):
            raise InputError(f"{path}: no list of objects, each the tuning of a problem; {_REMEDY}")
        tunings += [each for number, entry in enumerate(log, 1) for each in _tunings(entry, path, number)]
    kernel = one_kernel({tuning.kernel for tuning in tunings} or {"inductor_mm"}, name, paths[0])
    tunings = [tuning for tuning in tunings if tuning.kernel == kernel]
    sized = [(tuning, tuning.sizes) for tuning in tunings if tuning.sizes is not None]
    if len({frozenset(sizes) for _, sizes in sized}) > 1:
        raise InputError(f"{paths[0]}: problems of {kernel} differ in their number of sizes; log one kernel a file")
    outcomes = [each for tuning, sizes in sized for each in _outcomes(tuning, {"gpu": gpu, **sizes})]
    left_out = len(tunings) - len(sized)
    notes = [f"{plural(left_out, 'tuning')} with symbolic sizes left out"] * bool(left_out)
    return tuned(outcomes, kernel, sizes=[*sized[0][1]] if sized else [], where=paths[0], notes=notes)


FORMAT = Format("inductor", "PyTorch Inductor's log of autotuned matrix products", read)


def _tunings(entry: dict[str, Any], path: Path, number: int) -> list[_Tuning]:
    """What an entry of the log holds: nothing where it counts the calls of a compiled product.

    A key is a tuple as text, of numbers alone or behind the kernel's type; or the choices, of attention, tell the sizes.
    """
    tunings = []
    for key, listed in entry.items():
        choices = [each for each in listed if each is not None] if isinstance(listed, list) else []
        if odd := [each for each in choices if not isinstance(each, dict) or not {"type", "time"} <= each.keys()]:
            raise InputError(f"{path}, entry {number}: {repr(odd[0])[:60]} is no choice with type and time; {_REMEDY}")
        words = [str(choices[0].get(size)) for size in _FLEX] if key == "choices" and choices else _WORD.findall(key)
        texts = [word.strip("'\"") for word in words if word[0] in "'\""]
        numbers = words[len(texts) :]
        names = _SIZES.get(len(numbers)) or tuple(f"size_{place}" for place in range(len(numbers)))
        given = {size: int(n) for size, n in zip(names, numbers, strict=True) if re.fullmatch(r"[0-9]{1,15}", n)}
        sizes = {size: given[size] for size in (_ORDER if "m" in names else names) if size in given}
        if choices:
            kind = entry.get("kernel_type") or next(iter(texts), "mm")
            tunings.append(_Tuning(f"inductor_{kind}", sizes if len(sizes) == len(names) else None, choices, path.name))
    return tunings


def _outcomes(tuning: _Tuning, problem: dict[str, Any]) -> list[Outcome]:
    """The choices of a problem; of those without parameters the fastest of each library."""
    outcomes: list[Outcome] = []
    fastest: dict[str, Any] = {}
    for choice in tuning.choices:
        if choice["type"] == "triton":
            configuration = {key: value for key, value in choice.items() if key not in {*_OTHERS, *problem}}
            row = {**problem, "origin": tuning.origin, "library": "triton", "algorithm": None}
            outcomes.append(outcome(row, configuration, choice["time"]))
        elif is_time(choice["time"]):
            library = "cublas" if choice["type"] in ("aten", "extern") else str(choice["type"])
            fastest[library] = min(fastest.get(library, choice["time"]), choice["time"])
    for library, time_ms in fastest.items():
        outcomes.append(
            outcome({**problem, "origin": tuning.origin, "library": library, "algorithm": library}, {}, time_ms)
        )
    return outcomes
