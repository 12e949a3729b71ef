"""BUNDLE on the command line: a folder, or a GPU's name for the bundle that ships for it."""

from pathlib import Path

from surrogate.features.errors import InputError


def bundle_path(text: str, library: str | None = None) -> Path:
    """The folder that ``text`` means; what exists is a path, whatever else its name may be.

    Raises `InputError` where there is neither such a folder nor such a GPU.
    """
    from surrogate.features.gpu import gpu
    from surrogate.prediction.shipped import bundle_for, is_path

    if is_path(text) or Path(text).exists():
        return Path(text)
    try:
        one = gpu(text)
    except InputError as error:
        raise InputError(
            f"{text}: no bundle there (no bundle.json; `seer train` makes one), and no GPU whose bundle ships: {error}"
        ) from None
    return bundle_for(one, library)


def named_gpu(text: str, gpu: str | None) -> str | None:
    """The GPU that is asked about: the one named apart, else the one whose shipped bundle ``text`` names."""
    from surrogate.prediction.shipped import is_path

    return gpu if gpu or is_path(text) or Path(text).exists() else text
