"""The data that ship with the package: bundles, the table of ``seer compare``, networks without weights, and a trace.

They are public measurements or were fitted on them. NOTICE names the authors of the measurements.
"""

from pathlib import Path

FOLDER = Path(__file__).parent
DATASET = FOLDER / "cudnn_forward.parquet"
"""The forward fp32 rows of the public cuDNN 7 table, on which ``seer compare`` evaluates models by default."""
TRAINING_DATASET = FOLDER / "cudnn_partial.parquet"
"""Rows of networks with two measured algorithms per problem. By default ``seer compare`` also trains on them. They are
not used to evaluate choices."""
NETWORKS = {path.stem: path for path in sorted((FOLDER / "networks").iterdir())}
"""Name → network without weights, or configuration of a language model, as in ``seer network resnet50``."""
TRACES = {path.name.partition(".")[0]: path for path in sorted((FOLDER / "traces").iterdir())}
"""Name → profiler trace, as in ``seer trace summary vgg13_h100``."""
