"""Write a table of any length for load tests: the shipped table's rows, repeated at batches without measurements.

``python -m experiments.load_table ROWS PATH`` writes parquet, one row group after the other. The table serves for tests
of speed and memory, not of accuracy. Each row has the time of the row that it repeats, at another batch.
"""

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from surrogate.bundled import DATASET
from surrogate.dataset.files import atomic_path

ORIGIN = "made for load tests, not measured"


def write_load_table(rows: int, path: str | Path, group_rows: int = 100_000) -> None:
    """Write ``rows`` rows with distinct keys to ``path``, one group of ``group_rows`` in memory at a time."""
    table = pq.read_table(DATASET)
    batches, place = np.unique(table["n"].to_numpy(), return_inverse=True)
    table = table.set_column(table.schema.get_field_index("origin"), "origin", pa.array([ORIGIN] * len(table)))
    batch_column = table.schema.get_field_index("n")
    with atomic_path(path) as temporary, pq.ParquetWriter(temporary, table.schema) as writer:
        for start in range(0, rows, group_rows):
            repeat, row = np.divmod(np.arange(start, min(start + group_rows, rows)), len(table))
            group = table.take(row)
            # the first repeat has batches 1, 2, … in the order of the measured ones, the second has the next ones
            batch = 1 + len(batches) * repeat + place[row]
            writer.write_table(group.set_column(batch_column, "n", pa.array(batch)), row_group_size=group_rows)


if __name__ == "__main__":
    write_load_table(int(sys.argv[1]), sys.argv[2])
