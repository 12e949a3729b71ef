"""``seer gpus``: what the registry knows, what was measured on each GPU, and how far off predictions are expected."""

from typing import TYPE_CHECKING, Any

import click

from surrogate.cli.options import GPU, output_options, show
from surrogate.report.tables import Table

if TYPE_CHECKING:
    from surrogate.features.gpu import Gpu

NOTE = "nine in ten times are off by less than ×; ~ never measured there, from specification; rows measured behind"


@click.command()
@click.argument("name", required=False, type=GPU)
@output_options
def command(name: str | None, as_json: bool, as_csv: bool) -> None:
    """List the known GPUs, or show all that is known of GPU NAME (a registry name or an alias).

    For every family of kernels: the shipped bundle that answers, the rows of it that were measured on the GPU, and how
    far off times are expected to be: errors on held-out shapes where the GPU was measured, on GPUs left out of training
    where it was not. A TOML file named in the environment variable SEER_GPUS adds GPUs of your own.

    Examples:
      seer gpus
      seer gpus v100 --json
    """
    from surrogate.features.gpu import gpu, gpus
    from surrogate.features.occupancy import device_attributes

    if name:
        facts = gpu(name).to_dict() | device_attributes(gpu(name)) | {"answers": _answers(gpu(name))}
        records = [{"field": key, "value": value} for key, value in _flat(facts).items()]
        show(records, as_json=as_json, as_csv=as_csv, whole=facts)
        return
    full = [known.to_dict() | {"answers": _answers(known)} for known in gpus()]
    table = [
        {
            "name": facts["name"],
            "CC": facts["compute_capability"] or None,
            "SMs": facts["sms"],
            "fp32_tflops": facts["fp32_tflops"],
            "dram_gbs": facts["dram_gbs"],
            **{family: _short(row) for family, row in facts["answers"].items()},
        }
        for facts in full
    ]
    show(list(map(_flat, full)), as_json=as_json, as_csv=as_csv, whole=full, table=Table(table, notes=[NOTE]))


def _answers(one: "Gpu") -> dict[str, dict[str, Any]]:
    """Family → its bundle and the evidence on the GPU."""
    from surrogate.prediction.shipped import answering

    return {family: bundle.evidence(family, one.name) for family, bundle in answering(one).items()}


def _flat(facts: dict[str, Any]) -> dict[str, Any]:
    """One row for CSV: ``family_field`` of every answer."""
    answers = facts["answers"].items()
    cells = {f"{family}_{key}": value for family, row in answers for key, value in row.items()}
    return {key: value for key, value in facts.items() if key != "answers"} | cells


def _short(row: dict[str, Any]) -> str | None:
    if row["factor_90"] is None:
        return None
    return f"×{row['factor_90']:.2f} {row['rows']}" if row["rows"] else f"~×{row['factor_90']:.1f}"
