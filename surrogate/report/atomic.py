"""Files that are either whole or absent."""

import os
from pathlib import Path

from features.errors import InputError


def write_text(path: Path, text: str) -> None:
    """Write ``text`` (UTF-8, newlines as they are) under ``path``; a reader sees the old file or the new one.

    Raises `InputError` where the folder cannot be written.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with draft.open("w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        raise InputError(
            f"{path} cannot be written ({error.strerror}); choose a folder you may write"
        ) from None
    finally:
        draft.unlink(missing_ok=True)
