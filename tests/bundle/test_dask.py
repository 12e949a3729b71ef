"""Tests of training on a Dask cluster from row groups: the model equals that of one machine."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from surrogate.bundle.bundle import load
from surrogate.dataset.checks import normalise
from surrogate.dataset.rows import rows_of

pytest.importorskip("distributed", reason="dask is not installed: the extra dask")
pytestmark = pytest.mark.filterwarnings("ignore")  # of dask's own processes and sockets


def test_a_cluster_trains_the_same_model_as_one_machine(seer, table, tmp_path):
    frame = normalise(table(8), "test")
    path = tmp_path / "data.parquet"
    pq.write_table(pa.Table.from_pandas(frame, preserve_index=False), path, row_group_size=40)
    for words in ([], ["--dask", ""]):
        done = seer("train", path, *words, "-o", tmp_path / ("cluster" if words else "alone")).succeeded()
    assert f"learned from {len(frame)} rows" in done.out
    rows = rows_of(frame)
    alone, cluster = (load(tmp_path / name).family_models["conv"].model.predict(rows) for name in ("alone", "cluster"))
    # Quantile sketches of partitions move a few cuts; the trees are otherwise equal.
    assert np.median(np.abs(cluster / alone - 1)) < 0.02


def test_models_without_cluster_training_are_refused(seer, table, tmp_path) -> None:
    table(4).to_parquet(tmp_path / "data.parquet")
    done = seer("train", tmp_path / "data.parquet", "--model", "linear-terms", "--dask", "", "-o", tmp_path / "b")
    assert done.code == 2 and "cannot be trained on a cluster" in done.err
