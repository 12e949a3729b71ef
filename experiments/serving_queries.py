"""Ask aiconfigurator for the times of measured servers: ``serving_queries.py QUESTIONS ANSWERS``.

The script imports nothing of the project, so any interpreter with the package can run it. ``QUESTIONS`` is parquet with
the columns ``system backend model gemm moe`` (the last two are the types of products and experts, or "") and ``tensor
data expert batch input output``. ``ANSWERS`` has one row per question: ``ttft_ms`` and ``tpot_ms``, NaN if the package
refuses. Its steps process one prompt's tokens at a time. Its own estimates (HYBRID) replace missing table rows.
"""

import logging
import sys
from functools import cache
from typing import Any

import numpy as np
import pandas as pd


@cache
def database(system: str, backend: str) -> Any:
    """Return the newest tables of a framework on a GPU."""
    from aiconfigurator_core.sdk import common, perf_database

    version = perf_database.get_latest_database_version(system, backend)
    tables: Any = perf_database.get_database(system, backend, str(version))
    tables.set_default_database_mode(common.DatabaseMode["HYBRID"])
    return tables


@cache
def model(path: str, backend: str, gemm: str, moe: str, ways: tuple[int, int, int]) -> Any:
    """Return a model spread over GPUs by ``ways`` of tensor, data and expert parallelism."""
    from aiconfigurator_core.sdk.config_builders import build_model_config
    from aiconfigurator_core.sdk.models import get_model

    tensor, data, expert = ways
    width = tensor * data // expert
    built = build_model_config(tensor, 1, data, width, expert, gemm_quant_mode=gemm or None, moe_quant_mode=moe or None)
    return get_model(path, built, backend)


def answer(row: Any) -> tuple[float, float]:
    """Return the time to first token and the time per output token, in ms."""
    from aiconfigurator_core.sdk.backends.factory import get_backend
    from aiconfigurator_core.sdk.config import RuntimeConfig

    load = RuntimeConfig(batch_size=row.batch, isl=row.input, osl=row.output)
    spread = model(row.model, row.backend, row.gemm, row.moe, (row.tensor, row.data, row.expert))
    tables = database(row.system, row.backend)
    figures = get_backend(row.backend).run_agg(spread, tables, load, ctx_tokens=row.input).get_summary_df().iloc[0]
    return float(figures["ttft"]), float(figures["tpot"])


def main(questions: str, answers: str) -> None:
    """Answer every row."""
    logging.disable(logging.ERROR)
    rows = pd.read_parquet(questions)
    figures = np.full((len(rows), 2), np.nan)
    for place, row in enumerate(rows.itertuples()):
        try:
            figures[place] = answer(row)
        except (Exception, SystemExit):  # refusals raise many classes
            continue
    pd.DataFrame(figures, columns=["ttft_ms", "tpot_ms"]).to_parquet(answers)


if __name__ == "__main__":
    main(*sys.argv[1:])
