"""What a shell offers when a user presses tab on a GPU's name."""

import click


def gpu_names(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Registry names that begin with ``incomplete``, else such aliases; none where SEER_GPUS cannot be read."""
    from surrogate.features.errors import InputError
    from surrogate.features.gpu import gpus

    try:
        known = gpus()
    except InputError:
        return []
    begun = incomplete.casefold()
    names = [one.name for one in known if one.name.casefold().startswith(begun)]
    aliases = [alias for one in known for alias in one.aliases]
    return names or sorted({alias for alias in aliases if alias.casefold().startswith(begun)})
