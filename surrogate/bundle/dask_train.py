"""Training beyond one machine's memory: ``xgboost.dask`` over parquet files whose row groups are the partitions.

Every worker computes the columns of its own rows; only the booster, the candidates' names and a sample of rows come
back. Interval widths and the card come from that sample, held out by shape.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from surrogate.bundle.bundle import Bundle
from surrogate.bundle.train import Progress, train, unfitted_model
from surrogate.dataset.checks import families_of, family_rows, normalise
from surrogate.dataset.problems import fastest_solver
from surrogate.dataset.rows import Rows, rows_of
from surrogate.dataset.store import Dataset
from surrogate.features.errors import InputError
from surrogate.models import DEFAULT_MODEL
from surrogate.models.boosted import BoostedTerms

SAMPLE_ROWS = 100_000
"""Rows at most from which widths, card, support and domain come."""


def train_on_dask(
    paths: Sequence[str | Path],
    address: str | None = None,
    *,
    model: str = DEFAULT_MODEL,
    params: Mapping[str, Any] | None = None,
    candidate: str = "algorithm",
    candidates: str = "all",
    seed: int = 0,
    progress: Progress | None = None,
) -> Bundle:
    """`train` on parquet datasets by the workers of a Dask cluster at ``address`` (None: processes of this machine).

    A sample of whole problems is trained on first, as `train` does; then each family's booster is trained again on all
    rows. Raises `InputError` where dask is not installed, or for a model that is not boosted trees.
    """
    try:
        import dask
        import dask.array
        from distributed import Client
        from xgboost import dask as boosting
    except ImportError:
        raise InputError("training on a cluster needs dask; pip install 'seer-surrogate[dask]'") from None
    step = progress or (lambda done, total, text: None)
    unfitted = unfitted_model(model, params, seed)
    if not isinstance(unfitted, BoostedTerms):
        raise InputError(f"{model} is not trained on a cluster; {BoostedTerms.name} is")
    footers = {str(path): pq.read_metadata(path) for path in paths}
    parts = [(path, group) for path, footer in footers.items() for group in range(footer.num_row_groups)]
    with Client(address) if address else Client(processes=True, dashboard_address=None) as client:
        step(0, 3, "sample")
        share = min(1.0, SAMPLE_ROWS / sum(footer.num_rows for footer in footers.values()))
        sampled = client.gather([client.submit(_sample, *part, share, seed) for part in parts])
        frame = pd.concat(sampled, ignore_index=True)
        step(1, 3, "sample: held-out folds")
        sample = Dataset(frame, candidates, "+".join(Path(path).name for path in paths))
        bundle = train(sample, model=model, params=params, candidate=candidate, seed=seed)
        step(2, 3, "all rows")
        trained = {}
        for name, part in bundle.parts.items():
            fitted = part.model
            assert isinstance(fitted, BoostedTerms)
            designs = [dask.delayed(_design)(*part, name, candidate, fitted) for part in parts]
            lengths = client.gather(client.compute([dask.delayed(len)(design) for design in designs]))
            width = len(fitted.columns(part.family)) + 1
            pages = [
                dask.array.from_delayed(design, (length, width + 2), dtype=np.float32)
                for design, length in zip(designs, lengths, strict=True)
                if length
            ]
            table = dask.array.concatenate(pages)
            matrix = boosting.DaskQuantileDMatrix(
                client,
                table[:, :-2],
                table[:, -1],
                weight=table[:, -2],
                feature_weights=dask.array.from_array(fitted.column_weights(part.family)),
                max_bin=fitted.max_bin,
            )
            booster = None
            for settings, rounds in fitted.stages():
                booster = boosting.train(client, settings, matrix, rounds, xgb_model=booster)["booster"]
            trained[name] = replace(part, fitted=fitted.with_booster(booster))
    step(3, 3, "done")
    return replace(bundle, parts=trained)


def _read(path: str, group: int) -> pd.DataFrame:
    """One row group as a normalised table."""
    frame = pq.ParquetFile(path).read_row_group(group).to_pandas(ignore_metadata=True)
    return normalise(frame, f"{path}, row group {group}")


def _sample(path: str, group: int, share: float, seed: int) -> pd.DataFrame:
    """Whole problems, drawn by a hash of their keys, so that every worker draws alike."""
    frame = _read(path, group)
    is_sampled = np.zeros(len(frame), dtype=bool)
    for kind in families_of(frame):
        in_family = family_rows(frame, kind)
        names = frame.loc[in_family, list(kind.problem_key)].astype(str).agg("|".join, axis=1)
        hashes = pd.util.hash_pandas_object(names)
        is_sampled[in_family] = ((hashes.to_numpy() ^ np.uint64(seed)) / 2.0**64) < share
    return frame[is_sampled].reset_index(drop=True)


def _design(path: str, group: int, name: str, candidate: str, model: BoostedTerms) -> np.ndarray:
    """(ok rows, columns + 2) of one row group and family: what the booster sees, its weights, and its target last."""
    frame = _read(path, group)
    frame = fastest_solver(frame) if candidate == "algorithm" else frame
    kinds = [kind for kind in families_of(frame) if kind.name == name]
    if not kinds:
        return np.empty((0, 1), dtype=np.float32)
    rows: Rows = rows_of(frame[family_rows(frame, kinds[0])].reset_index(drop=True), kinds[0])
    rows = rows.take(rows.ok)
    parts = [model.design(rows), model.weights(rows, rows.time_us), model.target(rows, rows.time_us)]
    return np.column_stack(parts).astype(np.float32)
