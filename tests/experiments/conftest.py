"""Small sources, with a few shapes of each table of measurements, and fast models."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from experiments.experiment import Effort
from experiments.sources import FILES, Sources
from surrogate.dataset.tables import read_table, write_table
from tests.known import known_answers

SAMPLES = known_answers(__file__)
"""Source → query of its rows, columns of a problem, number of problems."""


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory, measurements: Path) -> Sources:
    """Return a folder with `SAMPLES` of these sources, and links to the files of the others."""
    folder = tmp_path_factory.mktemp("sources")
    for name, (file, _) in FILES.items():
        if name not in SAMPLES:
            (folder / file).parent.mkdir(exist_ok=True)
            (folder / file).symlink_to(measurements / file)
            continue
        query, key, count = SAMPLES[name]
        frame, metadata = read_table(measurements / file)
        rows = frame.query(query).reset_index(drop=True)
        problem = pd.util.hash_pandas_object(rows[key], index=False)
        write_table(rows[problem.isin(np.unique(problem)[:count])], folder / file, metadata)
    return Sources(folder)


@pytest.fixture
def effort(few_rounds: None) -> Effort:
    """Return a quick effort of four models."""
    return Effort(quick=True, models=("always-best-single", "roofline", "linear-terms", "boosted-terms"))
