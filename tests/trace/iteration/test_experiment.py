"""The experiment on a folder of invented traces, and without it."""

import gzip
import json
import shutil
import tarfile

from experiments import iteration_time
from experiments.effort import Effort
from experiments.sources import Sources


def test_runs_on_invented_traces(make_trace, tmp_path):
    folder = tmp_path / iteration_time.FOLDER
    folder.mkdir()
    path = tmp_path / "worker0.json"
    path.write_text(json.dumps(make_trace(steps=3)))
    for file in ("resnet50_b32_training_v100.json.gz", "resnet_training_2080ti_no_dims.json.gz"):
        with path.open("rb") as plain, gzip.open(folder / file, "wb") as packed:
            shutil.copyfileobj(plain, packed)
    with tarfile.open(folder / iteration_time.ARCHIVE, "w:gz") as archive:
        for worker in range(2):
            archive.add(path, f"dlrm/worker{worker}.json")
    sources = Sources(tmp_path)
    assert iteration_time.EXPERIMENT.missing(sources) is None
    found = iteration_time.run(sources, Effort(quick=True))
    rows = found.table.set_index(["trace", "setting"])
    assert rows.loc[("ResNet-50, V100", iteration_time.OWN), "n"] == 3
    assert rows.loc[("ResNet, RTX 2080 Ti", iteration_time.OTHERS), "n"] == 2
    assert rows.loc[(iteration_time.DLRM, iteration_time.OTHERS), "n"] == 6
    assert (rows["measured_ms"] == 0.99).all() and (rows["error_geomean_pct"] >= 0).all()
    assert found.figure is not None and "<svg" in found.figure and "published" in found.answer


def test_missing_is_said_in_one_line(tmp_path):
    line = iteration_time.EXPERIMENT.missing(Sources(tmp_path))
    assert line is not None and line.startswith("iteration_time: skipped") and "\n" not in line
