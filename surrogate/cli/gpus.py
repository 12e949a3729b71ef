"""``seer gpus``: what the registry knows."""

import click

from surrogate.cli.options import gpu_names, output_options, show


@click.command()
@click.argument("name", required=False, shell_complete=gpu_names)
@output_options
def command(name: str | None, as_json: bool, as_csv: bool) -> None:
    """List the known GPUs, or show all that is known of GPU NAME (a registry name or an alias).

    A TOML file named in the environment variable SEER_GPUS adds GPUs of your own.
    """
    from surrogate.features.gpu import gpu, gpus

    if name:
        one = gpu(name).to_dict()
        show(
            [{"field": key, "value": value} for key, value in one.items()],
            as_json=as_json,
            as_csv=as_csv,
            whole=one,
        )
        return
    full = [one.to_dict() for one in gpus()]
    table = [
        {
            "name": one["name"],
            "arch": one["architecture"],
            "CC": one["compute_capability"] or None,
            "SMs": one["sms"],
            "fp32_tflops": one["fp32_tflops"],
            "dram_gbs": one["dram_gbs"],
            "l2_mib": one["l2_bytes"] / 2**20,
            "checked": "yes" if one["checked"] else "no",
        }
        for one in full
    ]
    show(full if as_csv else table, as_json=as_json, as_csv=as_csv, whole=full)
