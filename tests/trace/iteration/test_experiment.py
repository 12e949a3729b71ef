"""The experiment on iteration times runs on a folder of invented traces."""

import json
import shutil
import tarfile

from experiments import iteration_time
from experiments.experiment import Effort
from experiments.sources import DLRM, RESNET, RESNET50, TRACES, Sources


def test_experiment_runs_on_invented_traces(make_trace, tmp_path):
    path = tmp_path / "worker0.json"
    path.write_text(json.dumps(make_trace(steps=3)))
    sources = Sources(tmp_path)
    for name in TRACES.values():
        file = sources.path(name)
        file.parent.mkdir(exist_ok=True)
        if file.name.endswith(".tar.gz"):
            with tarfile.open(file, "w:gz") as archive:
                for worker in range(2):
                    archive.add(path, f"dlrm/worker{worker}.json")
        else:
            shutil.copy(path, file)
    assert iteration_time.EXPERIMENT.missing(sources) is None
    found = iteration_time.run(sources, Effort(quick=True))
    rows = found.table.set_index(["trace", "setting"])
    assert rows.loc[(RESNET50, iteration_time.OWN), "n"] == 3
    assert rows.loc[(RESNET, iteration_time.OTHERS), "n"] == 2
    assert rows.loc[(DLRM, iteration_time.OTHERS), "n"] == 6
    assert (rows["measured_ms"] == 0.99).all() and (rows["error_geomean_pct"] >= 0).all()
    assert found.figure is not None and "<svg" in found.figure
