"""What ships with the package, fitted on or taken from public measurements: bundles, and the table of ``seer compare``.

NOTICE says whose measurements they are.
"""

from pathlib import Path

FOLDER = Path(__file__).parent
DATASET = FOLDER / "cudnn_forward.parquet"
"""The forward fp32 rows of the public cuDNN 7 table: what ``seer compare`` judges when no data is given."""
