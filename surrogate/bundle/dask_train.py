"""Train on data larger than one machine's memory: Dask workers grow one booster over row groups of parquet files.

Each worker reads its row groups one after the other. In memory it keeps one byte per column of a row, and the row's
target, weight and gradient. The columns themselves are on its disk while it reads. Only the booster, the candidates'
names and a sample of rows return. Interval widths and the card come from that sample, held out by shape.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

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
from surrogate.features import InputError
from surrogate.features.families import Family
from surrogate.models import DEFAULT_MODEL
from surrogate.models.boosted import BoostedTerms, DistilledTerms

SAMPLE_ROWS = 100_000
"""Maximum rows of the sample that determines widths, card, support and domain."""
RowGroup = tuple[str, int]
"""A parquet file and the number of a row group in it."""


def train_on_dask(
    paths: Sequence[str | Path],
    address: str | None = None,
    *,
    candidates: str = "all",
    progress: Progress | None = None,
    **options: Any,
) -> Bundle:
    """Train on parquet datasets with the workers of a Dask cluster.

    First a bundle is trained on a sample of complete problems. Then each family's booster is trained again on all rows.

    Parameters
    ----------
    paths
        Parquet datasets.
    address
        Address of the cluster's scheduler; None means processes of this machine.
    candidates
        Whether tables list ``all`` candidates or only some (``listed``).
    progress
        Called with the steps done, all steps, and a text.
    **options
        As in `train`. The default model is `DEFAULT_MODEL`.

    Returns
    -------
    Bundle
        The model card describes the sample.

    Raises
    ------
    InputError
        If dask is not installed, or if the model is not boosted trees.
    """
    try:
        from distributed import Client
    except ImportError:
        raise InputError("training on a cluster needs dask; pip install 'seer-surrogate[dask]'") from None
    step = progress or (lambda done, total, text: None)
    model = options.setdefault("model", DEFAULT_MODEL)
    chosen = TrainOptions(**options)
    new = new_model(model, chosen.params, chosen.seed)
    if not isinstance(new, BoostedTerms) or isinstance(new, DistilledTerms):
        raise InputError(f"{model} cannot be trained on a cluster; give {BoostedTerms.name}")
    footers = {str(path): pq.read_metadata(path) for path in paths}
    row_groups = [(path, group) for path, footer in footers.items() for group in range(footer.num_row_groups)]
    cluster: Any = Client(address) if address else Client(processes=True, dashboard_address=None)
    with cluster as client:
        step(0, 3, "sample")
        total = sum(footer.num_rows for footer in footers.values())
        share = min(1.0, SAMPLE_ROWS / total)
        sampled = client.gather([client.submit(_sample, row_group, share, chosen.seed) for row_group in row_groups])
        frame = pd.concat([each for each, _ in sampled], ignore_index=True)
        step(1, 3, "sample: held-out folds")
        bundle = train(Dataset(frame, candidates, "+".join(Path(path).name for path in paths)), **options)
        step(2, 3, "all rows")
        trained = {}
        for name, family_model in bundle.family_models.items():
            fitted = family_model.model
            assert isinstance(fitted, BoostedTerms)
            groups = [group for group, (_, names) in zip(row_groups, sampled, strict=True) if name in names]
            booster = _grown_by_workers(client, _Part(groups, fitted, family_model.family, chosen.candidate))
            trained[name] = replace(family_model, fitted=fitted.with_booster(booster))
    step(3, 3, "done")
    # The card describes the sample; the trees learned from all rows.
    training = {**bundle.card["training"], "rows_on_workers": total}
    return replace(bundle, family_models=trained, card={**bundle.card, "training": training})


class _Part(NamedTuple):
    """Row groups of one family, the model whose trees grow on them, and the unit of choice."""

    groups: Sequence[RowGroup]
    model: BoostedTerms
    family: Family
    candidate: str


def _grown_by_workers(client: Any, every: _Part) -> xgboost.Booster:
    """Return the trees of one family. Each worker holds some row groups, and all workers grow the same trees."""
    from distributed import MultiLock
    from distributed.comm.addressing import get_address_host

    threads = dict(list(client.nthreads().items())[: len(every.groups)])
    parts = [every._replace(groups=every.groups[number :: len(threads)]) for number in range(len(threads))]
    host = get_address_host(client.scheduler.address)
    with MultiLock(list(threads), client=client):  # two trainings at once would block each other's workers
        joined = client.run_on_scheduler(_start_tracker, len(threads), host)
        grown = [
            client.submit(_grow, joined, part, count, workers=[address], pure=False)
            for part, (address, count) in zip(parts, threads.items(), strict=True)
        ]
        return xgboost.Booster(model_file=client.gather(grown)[0])


def _start_tracker(workers: int, host: str) -> dict[str, str | int]:
    """Start the tracker on the scheduler, which all workers reach, and return the arguments to join it."""
    tracker = RabitTracker(n_workers=workers, host_ip=host)
    tracker.start()
    threading.Thread(target=tracker.wait_for, daemon=True).start()
    return tracker.worker_args()


def _grow(joined: Mapping[str, str | int], part: _Part, threads: int) -> bytearray:
    """Grow the booster on a worker and return its file, which is the same on all workers."""
    from distributed import get_worker

    with CommunicatorContext(**joined), TemporaryDirectory(dir=get_worker().local_directory) as folder:
        matrix = xgboost.QuantileDMatrix(_Designs(part, Path(folder)), max_bin=part.model.max_bin, nthread=threads)
        booster: xgboost.Booster | None = None
        for settings, rounds in part.model.stages():
            booster = xgboost.train({**settings, "nthread": threads}, matrix, rounds, xgb_model=booster)
        assert booster is not None
        return booster.save_raw("ubj")


class _Designs(xgboost.DataIter):
    """The booster's input of each row group. XGBoost reads it four times; the first pass computes it."""

    def __init__(self, part: _Part, folder: Path) -> None:
        super().__init__(release_data=True)
        self.part = part
        self.folder = folder
        self.done = 0

    def reset(self) -> None:
        """Restart at the first row group."""
        self.done = 0

    def next(self, input_data: Callable[..., None]) -> bool:
        """Pass the ok rows of the next row group to XGBoost. Returns False if there is no further row group."""
        if self.done == len(self.part.groups):
            return False
        path = self.folder / f"{self.done}.npy"
        if not path.exists():
            np.save(path, self.compute_design(self.part.groups[self.done]))
        page = np.load(path)
        weights = self.part.model.column_weights(self.part.family)
        input_data(data=page[:, :-2], weight=page[:, -2], label=page[:, -1], feature_weights=weights)
        self.done += 1
        return True

    def compute_design(self, group: RowGroup) -> np.ndarray:
        """Return (ok rows, columns + 2) float32 of one row group: the booster's columns, the weight, and the target."""
        frame = _read(group)
        _, model, family, candidate = self.part
        frame = fastest_solver(frame) if candidate == "algorithm" else frame
        rows = rows_of(frame[family_rows(frame, family)].reset_index(drop=True), family)
        rows = rows.take(rows.ok)
        design, weight = model.design(rows), model.weights(rows, rows.time_us)
        return np.column_stack([design, weight, model.target(rows, rows.time_us)]).astype(np.float32)


def _read(group: RowGroup) -> pd.DataFrame:
    """Return a row group as a normalised table."""
    path, number = group
    frame = pq.ParquetFile(path).read_row_group(number).to_pandas(ignore_metadata=True)
    return normalise(frame, f"{path}, row group {number}")


def _sample(group: RowGroup, share: float, seed: int) -> tuple[pd.DataFrame, list[str]]:
    """Return a sample of complete problems, and the families with ok rows.

    A hash of the problems' keys draws the sample, so that every worker draws the same problems.
    """
    frame = _read(group)
    is_ok = (frame["status"] == "ok") & np.isfinite(frame["time_us"])
    is_sampled = np.zeros(len(frame), dtype=bool)
    for family in families_of(frame):
        in_family = family_rows(frame, family)
        hashes = pd.util.hash_pandas_object(frame.loc[in_family, list(family.problem_key)].astype(str), index=False)
        is_sampled[in_family] = ((hashes.to_numpy() ^ np.uint64(seed)) / 2.0**64) < share
    return frame[is_sampled].reset_index(drop=True), [family.name for family in families_of(frame[is_ok])]
