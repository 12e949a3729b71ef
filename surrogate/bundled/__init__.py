"""What ships with the package, fitted on or taken from public measurements: bundles, the table of ``seer compare``,
networks without weights, and a trace.

NOTICE says whose measurements they are.
"""

from pathlib import Path

FOLDER = Path(__file__).parent
DATASET = FOLDER / "cudnn_forward.parquet"
"""The forward fp32 rows of the public cuDNN 7 table: what ``seer compare`` judges when no data is given."""
TRAINING_DATASET = FOLDER / "cudnn_partial.parquet"
"""Rows of networks of which two algorithms a problem were measured: what ``seer compare`` trains on, too, when no data
is given. No choice is judged by them."""
NETWORKS = {path.stem: path for path in sorted((FOLDER / "networks").iterdir())}
"""Networks without their weights, and configurations of language models, by name, as in ``seer network resnet50``."""
TRACES = {path.name.partition(".")[0]: path for path in sorted((FOLDER / "traces").iterdir())}
"""Profiler traces, by name: what ``seer trace summary vgg13_h100`` reads."""
