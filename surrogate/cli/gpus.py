"""``seer gpus``: what the registry knows."""

import click

from surrogate.cli.options import gpu_names, output_options, show


@click.command()
@click.argument("name", required=False, shell_complete=gpu_names)
@output_options
def command(name: str | None, as_json: bool, as_csv: bool) -> None:
    """List the known GPUs, or show all that is known of GPU NAME (a registry name or an alias).

    A TOML file named in the environment variable SEER_GPUS adds GPUs of your own.

    Examples:
      seer gpus
      seer gpus v100 --json
    """
    from surrogate.features.gpu import gpu, gpus

    if name:
        facts = gpu(name).to_dict()
        records = [{"field": key, "value": value} for key, value in facts.items()]
        show(records, as_json=as_json, as_csv=as_csv, whole=facts)
        return
    full = [known.to_dict() for known in gpus()]
    table = [
        {
            "name": facts["name"],
            "arch": facts["architecture"],
            "CC": facts["compute_capability"] or None,
            "SMs": facts["sms"],
            "fp32_tflops": facts["fp32_tflops"],
            "dram_gbs": facts["dram_gbs"],
            "l2_mib": facts["l2_bytes"] / 2**20,
            "checked": facts["checked"],
        }
        for facts in full
    ]
    show(full if as_csv else table, as_json=as_json, as_csv=as_csv, whole=full)
