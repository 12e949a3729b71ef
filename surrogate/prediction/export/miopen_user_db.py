"""Picks as MIOpen's user find-db (version 2): every solver of a problem with its predicted time, the fastest first.

MIOpen's immediate mode reads it as if its own Find had measured. It looks in ``~/.config/miopen`` (or
``MIOPEN_USER_DB_PATH``) for a file named after GPU, backend and its own version, such as ``gfx90a68.HIP.….ufdb.txt``:
give the file the name of the one that MIOpen made there. Workspaces are estimates.
"""

from surrogate.features.conv import Conv
from surrogate.features.errors import InputError
from surrogate.formats.miopen import DIRECTIONS, DTYPES
from surrogate.prediction.export.picks import Candidate, Picks

LETTERS = {name: letter for letter, name in DIRECTIONS.items()}
TYPES = {name: text for text, name in DTYPES.items()}
PREFIXES = {
    "fwd": "miopenConvolutionFwdAlgo",
    "bwd_data": "miopenConvolutionBwdDataAlgo",
    "bwd_filter": "miopenConvolutionBwdWeightsAlgo",
}


def miopen_user_db(picks: Picks) -> str:
    """The text, one problem a line. Raises `InputError` for another library, or where no solvers are chosen."""
    library = picks.rankings[0].library
    if library != "miopen":
        raise InputError(
            f"these picks are {library}'s; a MIOpen user find-db needs a bundle fitted on MIOpen's data"
        )
    if picks.candidate != "solver":
        raise InputError(
            "the bundle chooses among algorithms, a find-db names solvers; fit one with"
            " `seer train DATA --candidate solver`"
        )
    if not picks.feasible:
        raise InputError("no problem has a pick within the limits; the find-db would be empty")
    lines = {
        find_db_key(conv): ";".join(_entry(one, conv.direction) for one in ranking.candidates)
        for conv, ranking in picks.feasible
    }
    return "".join(f"{key}={entries}\n" for key, entries in lines.items())


def find_db_key(conv: Conv) -> str:
    """The key of a problem: what `surrogate.formats.miopen.parse_key` reads.

    The operation's own input stands first: for the backward directions that is the forward output.
    """
    near, far = (conv.c, conv.h, conv.w), (conv.k, conv.out_h, conv.out_w)
    first, last = (near, far) if conv.direction == "fwd" else (far, near)
    parts = [
        *first, f"{conv.r}x{conv.s}", *last, conv.n, f"{conv.pad_h}x{conv.pad_w}",
        f"{conv.stride_h}x{conv.stride_w}", f"{conv.dilation_h}x{conv.dilation_w}", 0, conv.layout,
        TYPES[conv.dtype], LETTERS[conv.direction],
    ]  # fmt: skip
    return "-".join(map(str, parts)) + (f"_g{conv.groups}" if conv.groups > 1 else "")


def _entry(one: Candidate, direction: str) -> str:
    return f"{one.solver}:{one.time_us / 1000:.9g},{int(one.workspace_bytes)},{PREFIXES[direction]}{one.algorithm}"
