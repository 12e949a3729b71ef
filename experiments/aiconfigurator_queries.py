"""Ask aiconfigurator and nvMatmulHeuristics for times: ``aiconfigurator_queries.py SYSTEMS QUERIES ANSWERS``.

The script imports nothing of the project, so any interpreter with one of both packages can run it. ``SYSTEMS`` is a
folder of aiconfigurator's tables. ``QUERIES`` is parquet with the columns ``system backend version kind dtype`` and the
sizes by their names in a dataset. ``ANSWERS`` has one row per query:

- ``time_us``, NaN if the package refuses;
- ``mode``, SILICON or HYBRID;
- ``heuristics_us``, nvMatmulHeuristics' estimate of a bf16 product.
"""

import logging
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

NAMES = {"bf16": "bfloat16", "int8_sq": "sq"}
"""Element type of a dataset → element type of aiconfigurator. Other types keep their name."""
MODES = ("SILICON", "HYBRID")
"""The second mode is tried if the first one refuses."""


def aiconfigurator(systems: str, queries: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Return the times in µs and the mode of each time, both (queries,)."""
    from aiconfigurator_core.sdk import common, perf_database

    logging.disable(logging.WARNING)
    time_us, mode = np.full(len(queries), np.nan), np.full(len(queries), "", dtype=object)
    for (system, backend, version), part in queries.groupby(["system", "backend", "version"]):
        database = perf_database.get_database(
            system, backend, version, systems_paths=[systems], allow_unlisted_version=True
        )
        if database is None:
            continue
        for name in MODES:
            database.set_default_database_mode(common.DatabaseMode[name])
            for row, query in _each(part):
                if mode[row]:
                    continue
                try:
                    operation, sizes = _operation(query)
                    time_us[row] = 1e3 * float(operation._engine_query(database, **sizes))
                    mode[row] = name
                except (Exception, SystemExit):  # refusals raise many classes
                    continue
    return time_us, mode


def _each(part: pd.DataFrame) -> Iterator[tuple[int, Any]]:
    return zip(part.index.tolist(), part.itertuples(), strict=True)


def _operation(query: Any) -> tuple[Any, dict[str, int]]:
    """Return the SDK's operation, and the sizes of the query."""
    from aiconfigurator_core.sdk import common
    from aiconfigurator_core.sdk.operations.attention import ContextAttention, GenerationAttention
    from aiconfigurator_core.sdk.operations.gemm import GEMM
    from aiconfigurator_core.sdk.operations.moe import MoE

    dtype = NAMES.get(query.dtype, query.dtype)
    if query.kind == "gemm":
        return GEMM("", 1.0, query.n, query.k, common.GEMMQuantMode[dtype]), {"x": query.m}
    if query.kind == "moe":
        layer = (query.hidden, query.inter, query.topk, query.experts)
        split = (query.tensor_parallel, query.expert_parallel)
        gated = query.variant != "nongated"
        quant = common.MoEQuantMode[dtype]
        return MoE("", 1.0, *layer, *split, quant, query.routing, 1, is_gated=gated), {"x": query.tokens}
    cache = common.KVCacheQuantMode[NAMES.get(query.kv_dtype, query.kv_dtype)]
    heads, options = (query.heads, query.kv_heads), {"window_size": query.window, "head_size": query.head_dim}
    if query.kind == "generation":
        return GenerationAttention("", 1.0, *heads, cache, **options), {
            "batch_size": query.batch,
            "s": query.context_length,
        }
    return ContextAttention("", 1.0, *heads, cache, common.FMHAQuantMode[dtype], **options), {
        "batch_size": query.batch,
        "s": query.query_length,
        "prefix": query.context_length - query.query_length,
    }


def heuristics(queries: pd.DataFrame) -> np.ndarray:
    """Return the times in µs (queries,) of the kernels that nvMatmulHeuristics ranks first.

    Only bf16 products on GPUs that it supports have a time.
    """
    import nvMatmulHeuristics as nv  # noqa: N813

    time_us = np.full(len(queries), np.nan)
    known = {
        "h100_sxm": "H100_SXM",
        "h200_sxm": "H200_SXM",
        "b200_sxm": "B200",
        "l40s": "L40S",
        "a100_sxm": "A100_SXM_80GB",
        "gb200": "GB200_NVL",
        "gb300": "GB300_NVL",
    }
    # This target and these flags have the smallest errors for the queries here.
    tuned = nv.NvMatmulHeuristicsFlags.PERF_MODEL_BASED_AUTO_TUNING
    library = nv.NvMatmulHeuristicsInterface(nv.NvMatmulHeuristicsTarget.GENERIC, "TST", flags=tuned)
    layout = nv.NvMatmulHeuristicsMatmulLayout.TN_ROW_MAJOR
    gemms = queries[(queries["kind"] == "gemm") & (queries["dtype"] == "bf16")]
    for system, part in gemms.groupby("system"):
        board = getattr(nv.NvMatmulHeuristicsNvidiaGpu, known.get(str(system), ""), None)
        if board is None:
            continue
        hardware = library.createHardwareDescriptor()
        library.setHardwarePredefinedGpu(hardware, board)
        library.loadInternalDiscoverySet(layout, hardware)
        for row, query in _each(part):
            kernels = library.get_with_mnk(query.m, query.n, query.k, layout, 1, hardware)
            if kernels:
                time_us[row] = 1e6 * kernels[0]["runtime"]
    library.handle = None  # version 0.1.0.27 crashes when it destroys its handle
    return time_us


def main(systems: str, queries: str, answers: str) -> None:
    """Write the answers. A missing package is named on standard error, and its answers are NaN."""
    questions = pd.read_parquet(queries)
    results = pd.DataFrame({"time_us": np.nan, "mode": "", "heuristics_us": np.nan}, index=questions.index)
    try:
        results["time_us"], results["mode"] = aiconfigurator(systems, questions)
    except ImportError as error:
        print(f"aiconfigurator: {error}", file=sys.stderr)
    try:
        results["heuristics_us"] = heuristics(questions)
    except (ImportError, OSError) as error:
        print(f"nvMatmulHeuristics: {error}", file=sys.stderr)
    results.to_parquet(answers)


if __name__ == "__main__":
    main(*sys.argv[1:])
