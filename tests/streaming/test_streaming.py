"""A streamed fit is as good as one in memory, its bundle knows the same, and its memory does not grow with the rows."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from surrogate.bundle.bundle import load, save
from surrogate.dataset.candidates import candidate_frame
from surrogate.dataset.normalise import normalise
from surrogate.dataset.rows import Rows, rows_of
from surrogate.dataset.splits import shape_names
from surrogate.dataset.store import Dataset, read_dataset, write_dataset
from surrogate.features.errors import InputError
from surrogate.models import Support, model_class
from surrogate.models.boosted import BoostedDims, BoostedTerms
from surrogate.streaming import fit_on_cluster, fit_streaming, train_streaming
from surrogate.streaming.pages import started, write_pages
from surrogate.streaming.shards import deal
from surrogate.uncertainty.domain import Domain

Table = Callable[..., pd.DataFrame]
FEW = {"rounds": 25, "learning_rate": 0.3, "max_depth": 5, "nthread": 1}


@pytest.fixture(scope="module")
def file(table: Table, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "t.parquet"
    write_dataset(table(40), path)
    return path


def _log_error(model: BoostedTerms | BoostedDims, rows: Rows) -> float:
    return float(np.sqrt(np.mean(np.log(model.predict_us(rows) / rows.time_us)[rows.ok] ** 2)))


def _rows(data: Dataset) -> Rows:
    return rows_of(candidate_frame(data, "algorithm"), data.devices)


def test_pages_hold_the_design_and_label_of_all_rows(file: Path, tmp_path: Path) -> None:
    begun, names = started(BoostedTerms, shards := deal([file], tmp_path), "algorithm", {})
    pages = [page.read() for page in write_pages(begun, shards, "algorithm", tmp_path)]
    rows = _rows(read_dataset(file))
    whole = BoostedTerms().paged(names).page(rows.take(rows.ok))
    for part in ("data", "label"):
        dealt = np.concatenate([page[part] for page in pages])
        order, expected = (np.lexsort(np.atleast_2d(each.T)) for each in (dealt, whole[part]))
        np.testing.assert_array_equal(dealt[order], whole[part][expected])
    assert all(page["feature_types"] == whole["feature_types"] for page in pages)


def test_held_out_shapes_are_predicted_as_well_as_by_a_fit_in_memory(table: Table, tmp_path: Path) -> None:
    frame = normalise(table(90, batches=(1, 4, 16), noise=0.1), "t")
    held_out = np.array([sum(map(ord, name)) % 3 == 0 for name in shape_names(frame)])
    write_dataset(frame[~held_out], tmp_path / "train.parquet")
    held, rows = (rows_of(frame[part].reset_index(drop=True)) for part in (held_out, ~held_out))
    streamed = _log_error(fit_streaming(BoostedTerms, [tmp_path / "train.parquet"], params=FEW), held)
    whole = _log_error(BoostedTerms(**FEW).fit(rows), held)
    nothing = float(np.sqrt(np.mean(np.log(held.roofline_us / held.time_us)[held.ok] ** 2)))
    assert streamed == pytest.approx(whole, rel=0.15) and max(streamed, whole) < 0.5 * nothing


def test_it_repeats_with_its_seed_and_saves_as_any_other(file: Path) -> None:
    first, again, other = (fit_streaming(BoostedTerms, [file], params=FEW, seed=seed) for seed in (1, 1, 2))
    rows = _rows(read_dataset(file))
    np.testing.assert_array_equal(first.predict_us(rows), again.predict_us(rows))
    assert (first.predict_us(rows) != other.predict_us(rows)).any()
    loaded = BoostedTerms.load(first.params, first.save())
    np.testing.assert_array_equal(loaded.predict_us(rows), first.predict_us(rows))


def test_the_bundle_knows_what_one_trained_in_memory_knows(file: Path, tmp_path: Path) -> None:
    bundle = train_streaming([file], params=FEW)
    rows = _rows(read_dataset(file))
    assert bundle.support == Support.fit(rows)
    whole = Domain.of(rows.frame)
    for part in ("ranges", "settings", "shapes", "versions"):
        assert getattr(bundle.domain, part) == getattr(whole, part), part
    farther = rows.frame.assign(c=3 * rows.frame["c"], h=rows.frame["h"] + 5)
    np.testing.assert_allclose(bundle.domain.distances(farther), whole.distances(farther))
    card = bundle.card
    assert card["data"]["rows"] == len(rows) and card["data"]["ok_rows"] == rows.ok.sum()
    assert card["data"]["shapes"] == 40 and card["data"]["gpus"] == ["TITAN Xp", "Tesla T4"]
    assert card["held_out"]["split"].startswith("a sample by shape") and card["training"]["streamed"]
    assert 0 < card["held_out"]["time"]["median_ape"] < 1
    save(bundle, tmp_path / "b")
    pd.testing.assert_frame_equal(load(tmp_path / "b").predict(rows.frame), bundle.predict(rows.frame))


def test_the_fastest_solver_is_found_whatever_batch_it_stands_in(table: Table, tmp_path: Path) -> None:
    """Two solvers per algorithm, the slow ones in another half of the file: only the fast ones are learned from."""
    fast = table(12).assign(solver="fast")
    slow = fast.assign(solver="slow", time_us=fast["time_us"] * 100)
    write_dataset(fast.drop(columns="solver"), tmp_path / "fast.parquet")
    write_dataset(pd.concat([slow, fast]), tmp_path / "both.parquet")
    rows = _rows(read_dataset(tmp_path / "fast.parquet"))
    both, alone = (
        fit_streaming(BoostedTerms, [tmp_path / f"{name}.parquet"], params=FEW) for name in ("both", "fast")
    )
    assert _log_error(both, rows) == pytest.approx(_log_error(alone, rows), rel=0.2)
    assert _log_error(both, rows) < 1.0 < np.log(100)


def test_what_cannot_be_streamed_is_refused(
    table: Table, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match="mlp needs all rows at once; stream boosted-dims or boosted-terms"):
        fit_streaming(model_class("mlp"), [file])
    with pytest.raises(InputError, match="no scratch folder there"):
        fit_streaming(BoostedTerms, [file], scratch=tmp_path / "none")
    write_dataset(table(1), tmp_path / "one.parquet")
    with pytest.raises(InputError, match="too few measured shapes"):
        train_streaming([tmp_path / "one.parquet"], params=FEW)
    write_dataset(table(3).assign(status="failed"), tmp_path / "failed.parquet")
    with pytest.raises(InputError, match="no row has status ok"):
        fit_streaming(BoostedTerms, [tmp_path / "failed.parquet"])
    import xgboost

    monkeypatch.delattr(xgboost, "ExtMemQuantileDMatrix")
    with pytest.raises(InputError, match="pip install 'xgboost>=3'"):
        fit_streaming(BoostedTerms, [file], params=FEW)


def test_scratch_files_go_with_the_fit(file: Path, tmp_path: Path) -> None:
    fit_streaming(BoostedTerms, [file], params=FEW, scratch=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_dask_workers_train_as_well_as_one_process(file: Path) -> None:
    distributed = pytest.importorskip("distributed", reason="dask is not installed")
    pytest.importorskip("dask.array", reason="dask is not installed")
    rows = _rows(read_dataset(file))
    whole = _log_error(BoostedTerms(**FEW).fit(rows), rows)
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        fitted = fit_on_cluster(client, BoostedTerms, [file], params=FEW)
    assert _log_error(fitted, rows) == pytest.approx(whole, rel=0.3)  # bins are drawn from the workers' parts


PEAK = """
import resource, sys
from pathlib import Path
from surrogate.models.boosted import BoostedTerms
from surrogate.streaming import fit_streaming

fit_streaming(BoostedTerms, [Path(sys.argv[1])], params={"rounds": 5, "nthread": 1}, shard_rows=4096)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_rows(table: Table, tmp_path: Path) -> None:
    """Four times the rows; what grows is XGBoost's few numbers a row, not features (270 bytes) or texts (1 kB)."""
    frame = table(48, batches=range(1, 65))
    peaks = []
    for copies in (2, 8):
        copied = [frame.assign(library_version=f"7.6.{k}") for k in range(copies)]
        write_dataset(pd.concat(copied), tmp_path / "t.parquet")
        command = [sys.executable, "-c", PEAK, str(tmp_path / "t.parquet")]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        peaks.append(1024 * int(done.stdout))
    assert (peaks[1] - peaks[0]) / (6 * len(frame)) < 200
