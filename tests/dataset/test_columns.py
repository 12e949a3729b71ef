"""columns.toml declares and explains every column of every family."""

from surrogate.dataset.columns import COLUMNS, TABLES, names
from surrogate.features.families import FAMILIES


def test_every_column_is_declared_once_and_explained() -> None:
    for table in TABLES:
        declared = names(table)
        assert declared and len(set(declared)) == len(declared), table
    assert {column.table for column in COLUMNS} == set(TABLES)
    for column in COLUMNS:
        assert column.kind in ("text", "int64", "float64", "boolean")
        assert column.meaning and column.meaning[-1] not in ".;," and "\n" not in column.meaning


def test_every_family_has_its_columns() -> None:
    declared = set(names("dataset"))
    assert len(FAMILIES) > 5
    for family in FAMILIES.values():
        assert {*family.row_key, "family", "solver"} <= declared
