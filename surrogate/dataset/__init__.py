"""Rows to checked tables: schema, check, store, merge, strata, splits."""

from surrogate.dataset.check import Violation, check
from surrogate.dataset.merge import merge
from surrogate.dataset.normalise import normalise
from surrogate.dataset.problems import fastest_solver, judged_rows, problem_codes, shape_codes
from surrogate.dataset.splits import SPLITS, Fold, folds, seer_split
from surrogate.dataset.store import Dataset, read_dataset, read_problems, read_table, write_dataset
from surrogate.dataset.strata import GROUPINGS, STRATA, strata

__all__ = [
    "GROUPINGS",
    "SPLITS",
    "STRATA",
    "Dataset",
    "Fold",
    "Violation",
    "check",
    "fastest_solver",
    "folds",
    "judged_rows",
    "merge",
    "normalise",
    "problem_codes",
    "read_dataset",
    "read_problems",
    "read_table",
    "seer_split",
    "shape_codes",
    "strata",
    "write_dataset",
]
