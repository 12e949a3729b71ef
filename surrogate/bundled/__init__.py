"""What ships with the package, fitted on or taken from public measurements: bundles, the table of ``seer compare``, and
networks without weights.

NOTICE says whose measurements they are.
"""

from pathlib import Path

FOLDER = Path(__file__).parent
DATASET = FOLDER / "cudnn_forward.parquet"
"""The forward fp32 rows of the public cuDNN 7 table: what ``seer compare`` judges when no data is given."""
NETWORKS = {path.stem: path for path in sorted((FOLDER / "networks").glob("*.onnx"))}
"""Well-known networks without their weights, by name: what ``seer network resnet50`` times."""
