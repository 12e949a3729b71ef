"""Training beyond one machine's memory: Dask's workers grow one booster over the row groups of parquet files.

Each worker reads its row groups one after the other and keeps of each in memory what the trees need: a byte for each
column of a row, its target, weight and gradient; the columns themselves lie on its disk while it reads. Only the
booster, the candidates' names and a sample of rows come back. Interval widths and the card come from that sample, held
out by shape.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import xgboost
from xgboost.collective import CommunicatorContext
from xgboost.tracker import RabitTracker

from surrogate.bundle.bundle import Bundle
from surrogate.bundle.train import TrainOptions, new_model, train
from surrogate.dataset.checks import normalise
from surrogate.dataset.files import Progress
from surrogate.dataset.problems import families_of, family_rows, fastest_solver
from surrogate.dataset.rows import rows_of
from surrogate.dataset.store import Dataset
from surrogate.features.errors import InputError
from surrogate.features.families import Family
from surrogate.models import DEFAULT_MODEL
from surrogate.models.boosted import BoostedTerms
from surrogate.models.distilled import DistilledTerms

SAMPLE_ROWS = 100_000
"""Rows at most from which widths, card, support and domain come."""
RowGroup = tuple[str, int]
"""A parquet file and which of its row groups."""


def train_on_dask(
    paths: Sequence[str | Path],
    address: str | None = None,
    *,
    candidates: str = "all",
    progress: Progress | None = None,
    **options: Any,
) -> Bundle:
    """`train` on parquet datasets by the workers of a Dask cluster at ``address`` (None: processes of this machine).

    ``options`` are those of `train`; the model is `DEFAULT_MODEL` if none is named. A sample of whole problems is
    trained on first, as `train` does; then each family's booster is trained again on all rows. Raises `InputError`
    where dask is not installed, or for a model that is not boosted trees.
    """
    try:
        from distributed import Client
    except ImportError:
        raise InputError("training on a cluster needs dask; pip install 'seer-surrogate[dask]'") from None
    step = progress or (lambda done, total, text: None)
    model = options.setdefault("model", DEFAULT_MODEL)
    chosen = TrainOptions(**options)
    unfitted = new_model(model, chosen.params, chosen.seed)
    if not isinstance(unfitted, BoostedTerms) or isinstance(unfitted, DistilledTerms):
        raise InputError(f"{model} is not trained on a cluster; {BoostedTerms.name} is")
    footers = {str(path): pq.read_metadata(path) for path in paths}
    parts = [(path, group) for path, footer in footers.items() for group in range(footer.num_row_groups)]
    cluster: Any = Client(address) if address else Client(processes=True, dashboard_address=None)
    with cluster as client:
        step(0, 3, "sample")
        total = sum(footer.num_rows for footer in footers.values())
        share = min(1.0, SAMPLE_ROWS / total)
        sampled = client.gather([client.submit(_sample, part, share, chosen.seed) for part in parts])
        frame = pd.concat([each for each, _ in sampled], ignore_index=True)
        step(1, 3, "sample: held-out folds")
        sample = Dataset(frame, candidates, "+".join(Path(path).name for path in paths))
        bundle = train(sample, **options)
        step(2, 3, "all rows")
        trained = {}
        for name, part in bundle.parts.items():
            fitted = part.model
            assert isinstance(fitted, BoostedTerms)
            own = [group for group, (_, names) in zip(parts, sampled, strict=True) if name in names]
            booster = _grown_by_workers(client, own, fitted, part.family, chosen.candidate)
            trained[name] = replace(part, fitted=fitted.with_booster(booster))
    step(3, 3, "done")
    # What the card says of the data is the sample's; the trees learned from all rows.
    training = {**bundle.card["training"], "rows_on_workers": total}
    return replace(bundle, parts=trained, card={**bundle.card, "training": training})


def _grown_by_workers(
    client: Any, groups: Sequence[RowGroup], model: BoostedTerms, family: Family, candidate: str
) -> xgboost.Booster:
    """The trees of one family; every worker holds a part of its row groups and all grow the same trees."""
    from distributed import MultiLock
    from distributed.comm.addressing import get_address_host

    threads = dict(list(client.nthreads().items())[: len(groups)])
    host = get_address_host(client.scheduler.address)
    with MultiLock(list(threads), client=client):  # two trainings would wait for each other's workers
        joined = client.run_on_scheduler(_start_tracker, len(threads), host)
        grown = [
            client.submit(
                _grow,
                joined,
                groups[place :: len(threads)],
                model,
                family,
                candidate,
                count,
                workers=[address],
                pure=False,
            )
            for place, (address, count) in enumerate(threads.items())
        ]
        return xgboost.Booster(model_file=client.gather(grown)[0])


def _start_tracker(workers: int, host: str) -> dict[str, str | int]:
    """Begin what tells the workers of each other, on the scheduler, which all of them reach: how they join."""
    tracker = RabitTracker(n_workers=workers, host_ip=host)
    tracker.start()
    threading.Thread(target=tracker.wait_for, daemon=True).start()
    return tracker.worker_args()


def _grow(
    joined: Mapping[str, str | int],
    groups: Sequence[RowGroup],
    model: BoostedTerms,
    family: Family,
    candidate: str,
    threads: int,
) -> bytearray:
    """On a worker: the booster's file, the same on all of them."""
    from distributed import get_worker

    with CommunicatorContext(**joined), TemporaryDirectory(dir=get_worker().local_directory) as folder:
        designs = _Designs(groups, model, family, candidate, Path(folder))
        matrix = xgboost.QuantileDMatrix(designs, max_bin=model.max_bin, nthread=threads)
        booster: xgboost.Booster | None = None
        for settings, rounds in model.stages():
            booster = xgboost.train({**settings, "nthread": threads}, matrix, rounds, xgb_model=booster)
        assert booster is not None
        return booster.save_raw("ubj")


class _Designs(xgboost.DataIter):
    """What the booster sees of each row group; XGBoost passes over them four times, of which the first computes it."""

    def __init__(
        self, groups: Sequence[RowGroup], model: BoostedTerms, family: Family, candidate: str, folder: Path
    ) -> None:
        super().__init__(release_data=True)
        self.groups = groups
        self.model = model
        self.family = family
        self.candidate = candidate
        self.folder = folder
        self.done = 0

    def reset(self) -> None:
        """Begin again."""
        self.done = 0

    def next(self, input_data: Callable[..., None]) -> bool:
        """Hand over the ok rows of the next row group; False where there is none."""
        if self.done == len(self.groups):
            return False
        path = self.folder / f"{self.done}.npy"
        if not path.exists():
            np.save(path, self.computed(self.groups[self.done]))
        page = np.load(path)
        weights = self.model.column_weights(self.family)
        input_data(data=page[:, :-2], weight=page[:, -2], label=page[:, -1], feature_weights=weights)
        self.done += 1
        return True

    def computed(self, group: RowGroup) -> np.ndarray:
        """(ok rows, columns + 2) float32 of one row group: what the booster sees, the weights, and the target last."""
        frame = _read(group)
        frame = fastest_solver(frame) if self.candidate == "algorithm" else frame
        rows = rows_of(frame[family_rows(frame, self.family)].reset_index(drop=True), self.family)
        rows = rows.take(rows.ok)
        design, weight = self.model.design(rows), self.model.weights(rows, rows.time_us)
        return np.column_stack([design, weight, self.model.target(rows, rows.time_us)]).astype(np.float32)


def _read(group: RowGroup) -> pd.DataFrame:
    """One row group as a normalised table."""
    path, number = group
    frame = pq.ParquetFile(path).read_row_group(number).to_pandas(ignore_metadata=True)
    return normalise(frame, f"{path}, row group {number}")


def _sample(group: RowGroup, share: float, seed: int) -> tuple[pd.DataFrame, list[str]]:
    """Whole problems, drawn by a hash of their keys, so that every worker draws alike; and families with ok rows."""
    frame = _read(group)
    is_ok = (frame["status"] == "ok") & np.isfinite(frame["time_us"])
    is_sampled = np.zeros(len(frame), dtype=bool)
    for family in families_of(frame):
        in_family = family_rows(frame, family)
        keys = frame.loc[in_family, list(family.problem_key)].astype(str)
        hashes = pd.util.hash_pandas_object(keys, index=False)
        is_sampled[in_family] = ((hashes.to_numpy() ^ np.uint64(seed)) / 2.0**64) < share
    measured = [family.name for family in families_of(frame[is_ok])]
    return frame[is_sampled].reset_index(drop=True), measured
