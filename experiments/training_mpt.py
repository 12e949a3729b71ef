"""How far off are training steps of language models on 8 to 512 GPUs, of sizes that no constant saw?

MosaicML's measured steps of MPT (fully sharded; H100 and A100) are compared with predictions. Rows in fp8 and of other
sharding are left out. `FITTED` are the sizes that constants of the product are fitted to: the rate of Triton's
attention, the factor of a step, and what messages cost beside computation. All of these steps ran, so a prediction
that one of them does not fit is an error.
"""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd

from experiments.experiment import Effort, ExperimentResult, program
from experiments.sources import Sources
from experiments.training_steps import judged_by
from surrogate.network import load_predictors, read_network
from surrogate.report.charts import dots

FITTED = ("350m", "3b", "70b")
VOCABULARY = 50_368
NODE_GPUS, NODE_GBPS = 8, 1600.0
"""GPUs of a node, and its network in Gbit/s (mosaicml/llm-foundry, scripts/train/benchmarking)."""


def config(row: dict[str, Any]) -> dict[str, object]:
    """Return the ``config.json`` of a row's model."""
    sizes = {"d_model": row["d_model"], "n_heads": row["heads"], "n_layers": row["layers"]}
    lengths = {"max_seq_len": row["sequence"], "vocab_size": VOCABULARY, "expansion_ratio": 4}
    return {"model_type": "mpt", **sizes, **lengths, "no_bias": True, "learned_pos_emb": True}


def options(row: dict[str, Any]) -> dict[str, Any]:
    """Return how a row's model was trained, as fields of `ReadOptions`."""
    return {
        "training": True,
        "batch": row["microbatch"],
        "sequence": row["sequence"],
        "accumulate": row["accumulation"],
        "checkpointing": row["checkpointing"],
        "optimizer": "adamw",
        "fsdp": row["gpus"],
        "amp" if row["precision"] == "amp_bf16" else "dtype": "bf16",
        "node_gbps": NODE_GBPS if row["gpus"] > NODE_GPUS else None,
    }


def steps(path: Path, limit: int | None = None) -> pd.DataFrame:
    """Return the measured steps with ``measured_ms predicted_ms lower_ms upper_ms fits``."""
    table = pd.read_parquet(path)
    table = table[(table["sharding"] == "FULL_SHARD") & (table["precision"] != "amp_fp8")]
    rows = []
    with TemporaryDirectory() as folder:
        for row in table.sample(limit or len(table), random_state=0).sort_index().to_dict("records"):
            row = {str(name): value for name, value in row.items()}
            file = Path(folder) / "config.json"
            file.write_text(json.dumps(config(row)), encoding="utf-8")
            time = load_predictors(row["gpu"]).time(read_network(file, **options(row)))
            ends = {"predicted_ms": time.total_us, "lower_ms": time.lower_us, "upper_ms": time.upper_us}
            rows.append(row | {name: time_us / 1e3 for name, time_us in ends.items()} | {"fits": time.fits})
    return pd.DataFrame(rows).rename(columns={"step_ms": "measured_ms"})


def judged(table: pd.DataFrame) -> pd.DataFrame:
    """Return errors, coverage, and the steps called too large, by sizes of models and by GPU."""
    table = table.assign(
        sizes=table["model"].isin(FITTED).map({True: "sizes fitted", False: "sizes never seen"}),
        gpus=(table["gpus"] > NODE_GPUS).map({True: "16 and more GPUs", False: "8 GPUs"}),
    )
    return judged_by([(table, [by, "gpus"], by) for by in ("sizes", "gpu", "model")])


def run(sources: Sources, effort: Effort) -> ExperimentResult:
    """Return errors, coverage and memory by sizes of models and by GPU."""
    table = judged(steps(sources.path("mpt_training"), 24 if effort.quick else None))
    figure = dots(table, "group", "by", "median_error_pct", "median error of the step, %")
    return ExperimentResult(table, figure)


EXPERIMENT = program(run, "mpt_training")
