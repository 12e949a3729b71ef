"""``seer gpus``: the GPUs of the registry, the measurements on each of them, and the expected errors."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from surrogate.cli.options import GPU, Form, echo, output_options, show
from surrogate.features import read_toml
from surrogate.report.tables import Table, percent

if TYPE_CHECKING:
    from surrogate.features.gpu import Gpu

_TEXTS = read_toml(__file__)
NEVER_MEASURED = "~"


@click.command()
@click.argument("name", required=False, type=GPU)
@output_options
def command(name: str | None, form: Form) -> None:
    """List the GPUs of the registry, or show everything about GPU NAME (a registry name or an alias).

    For every family of kernels, the command shows the shipped bundle, its rows measured on the GPU, and the expected
    error. If the GPU was measured, the error is on held-out shapes; otherwise it is on held-out GPUs. The environment
    variable SEER_GPUS may name a TOML file with GPUs of your own.

    Examples:
      seer gpus
      seer gpus v100 --json
    """
    from surrogate.features.gpu import gpu, gpus
    from surrogate.features.kernels import device_attributes

    if name:
        board = gpu(name)
        facts = board.to_dict() | device_attributes(board) | {"contradictions": board.contradictions()}
        answers = answers_on(board)
        records = [{"field": key, "value": value} for key, value in _flat(facts, answers).items()]
        if form:
            show(records, form, json_value=facts | {"answers": answers})
        else:
            _print_facts(facts, answers)
        return
    boards = [(board, answers_on(board)) for board in gpus()]
    # All unmeasured boards of a vendor have the same answer, so a last row per vendor shows it once.
    unseen: dict[str, dict[str, object]] = {}
    for board, answers in boards:
        unmeasured = {family: row["factor_90"] for family, row in answers.items() if not row["rows"]}
        unseen.setdefault(board.vendor, {"name": f"{NEVER_MEASURED} {board.vendor}"}).update(
            {family: f"~×{factor:.1f}" for family, factor in unmeasured.items() if factor is not None}
        )
    table = Table([*(_row(board, answers) for board, answers in boards), *unseen.values()], notes=[_TEXTS["note"]])
    records = [_flat(board.to_dict(), answers) for board, answers in boards]
    show(records, form, json_value=[board.to_dict() | {"answers": answers} for board, answers in boards], table=table)


def _print_facts(facts: Mapping[str, object], answers: Mapping[str, Mapping[str, object]]) -> None:
    """Print every figure with its unit and meaning, and the evidence for each family of kernels."""
    figures = _TEXTS["figures"]
    values = {key: value if isinstance(value, bool) else value or None for key, value in facts.items()}
    figure_rows = [{"field": key, "unit and meaning": text, "value": values[key]} for key, text in figures.items()]
    show([], table=Table(figure_rows, notes=["– not known, or no such unit"]))
    echo("")
    show([], table=family_table(answers, "times of kernels on it"))


def family_table(answers: Mapping[str, Mapping[str, object]], title: str, *notes: str) -> Table:
    """Return the table of `answers_on`, with a row for each family, and further notes."""
    heads = _TEXTS["heads"].items()
    families = [
        {"kernels": family, **{head: _factors(row, ".3f") if key == "factor_90" else row[key] for key, head in heads}}
        for family, row in answers.items()
    ]
    return Table(families, {"median error %": percent}, title, notes=[_TEXTS["errors"], *notes])


def answers_on(board: "Gpu") -> dict[str, dict[str, object]]:
    """Return family → its bundle and the evidence on the GPU."""
    from surrogate.prediction.shipped import bundles_by_family

    return {family: bundle.evidence(family, board.name) for family, bundle in bundles_by_family(board).items()}


def _flat(facts: Mapping[str, object], answers: Mapping[str, Mapping[str, object]]) -> dict[str, object]:
    """Return one row for CSV, with ``family_field`` of every answer."""
    return {**facts, **{f"{family}_{key}": value for family, row in answers.items() for key, value in row.items()}}


def _factors(row: Mapping[str, Any], form: str) -> str:
    """Return the factor for nine in ten times, or its range over the element types that were measured."""
    factors = [*row["factors_90"].values()] or [row["factor_90"]]
    ends = min(factors), max(factors)
    return "–".join(dict.fromkeys(format(end, form) for end in ends))


def _row(board: "Gpu", answers: Mapping[str, Mapping[str, Any]]) -> dict[str, object]:
    """Return one row for people. Compute capabilities identify NVIDIA's architectures."""
    cells: dict[str, object] = {"name": board.name, "CC": str(board.compute_capability or board.architecture)}
    cells |= {"SMs": board.sms, "fp32_tflops": board.fp32_tflops, "dram_gbs": board.dram_gbs}
    for family, row in answers.items():
        cells[family] = f"×{_factors(row, '.2f')} {row['rows']}" if row["rows"] else NEVER_MEASURED
    return cells
