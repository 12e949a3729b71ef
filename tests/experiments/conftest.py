"""Small sources, with a few shapes of each table of measurements, and fast models."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from experiments.experiment import Effort
from experiments.sources import FILES, Sources
from surrogate.dataset.tables import read_table, write_table
from surrogate.models.boosted import BoostedTerms

CONV = ["c", "h", "k", "r", "stride_h"]
AMD = "direction == 'fwd' and dtype == 'fp32' and layout == 'NCHW' and n < 65"
SAMPLES = {
    "cudnn": (
        "gpu in ('Tesla V100-SXM2-16GB', 'Tesla T4') and n in (1, 128) and dtype == 'fp32'"
        " and library_version in ('7.6.3', '7.6.4')",
        CONV,
        16,
    ),
    "partial": ("gpu == 'TITAN Xp'", CONV, 8),
    **dict.fromkeys(("mi210", "mi100", "mi300x", "navi21"), (AMD, CONV, 12)),
    "winners": ("n == 4", CONV, 24),
    "other_ops": ("gpu in ('Tesla T4', 'Tesla V100-SXM2-16GB') and variant == 'ACTIVATION_RELU'", ["args"], 40),
    "scope_ops": ("variant == 'ACTIVATION_TANH'", ["c", "h", "k"], 20),
    "dense": ("op in ('bmm', 'ln') and gpu in ('Tesla T4', 'Tesla P4', 'Tesla V100-PCIE-32GB')", [*"BMNKH"], 60),
    "deepbench": ("device == 'NV_V100' and precision == 'Float'", [*"MNK"], 12),
    "transformers": ("batch == '2'", ["config"], 4),
    "cpu_matmul": ("m > 0", [*"mnk"], 12),
}
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
def effort(monkeypatch: pytest.MonkeyPatch) -> Effort:
    """Return a quick effort of four models, with boosters of 20 rounds."""
    defaults = BoostedTerms.__init__.__defaults__
    assert defaults and BoostedTerms().rounds == defaults[0]
    monkeypatch.setattr(BoostedTerms.__init__, "__defaults__", (20, *defaults[1:]))
    return Effort(quick=True, models=("always-best-single", "roofline", "linear-terms", "boosted-terms"))
