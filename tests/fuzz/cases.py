"""One damaged input of a reader, and what the reader made of it."""

import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

from surrogate.features.errors import InputError
from tests.fuzz.files import Files
from tests.fuzz.mutations import damaged, extremes
from tests.fuzz.readers import Reader

HANG_SECONDS = 5.0
LONGEST_MESSAGE = 1000
SHARED_DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
LARGEST_REAL_BYTES = 300_000


@dataclass(frozen=True, slots=True)
class Outcome:
    """``verdict``: read, refused, crashed or hung; ``text``: the message or the error; ``seconds`` of the processor."""

    verdict: str
    text: str
    seconds: float


def all_seeds(reader: Reader, *, real: bool = False) -> list[Files]:
    """The reader's valid files; with ``real`` also those of the measured data, where it is present."""
    found = reader.seeds()
    if real and SHARED_DATA.is_dir():
        for pattern in reader.real:
            for path in sorted(SHARED_DATA.glob(pattern)):
                if path.stat().st_size <= LARGEST_REAL_BYTES:
                    found.append({path.name: path.read_bytes()})
    return found


def damaged_files(reader: Reader, valid: list[Files], number: int, seed: int) -> Files:
    """Case ``number``: always the same files for the same ``seed``."""
    random = Random(f"{seed} {reader.name} {number}")
    files = dict(random.choice(valid))
    name = random.choice(list(files))
    structure = reader.structure(name)
    if reader.folder and random.random() < 0.05:
        del files[name]
    elif structure is not None and random.random() < 0.6:
        files[name] = structure(files[name], random)
    else:
        files[name] = damaged(files[name], [next(iter(each.values())) for each in valid], random)
    return reader.after(files) if random.random() < 0.9 else files


def extreme_files(reader: Reader, valid: list[Files]) -> Iterator[tuple[str, Files]]:
    """(name, files) of inputs of extreme size or shape, in the place of the first file."""
    first = next(iter(valid[0]))
    for name, content in extremes(valid[0][first]).items():
        yield name, reader.after({**valid[0], first: content})


def write(files: Files, folder: Path, reader: Reader) -> Path:
    """Write ``files`` into the empty ``folder``; the path that the reader is given."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder if reader.folder else folder / next(iter(files))


def run(reader: Reader, path: Path) -> Outcome:
    """Read ``path``. A warning that a user would see counts as a crash, as does a message of several lines.

    Hung is what takes long of the processor; what waits for ever, its watcher ends (`tests.fuzz`).
    """
    start = time.process_time()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            reader.read(path)
        verdict, text = "read", ""
    except InputError as error:
        text = str(error)
        wrong = _wrong_message(text)
        verdict, text = ("crashed", f"{wrong}: {text[:300]!r}") if wrong else ("refused", text)
    except Exception as error:  # the finding this is all about
        place = _place(error)
        verdict, text = "crashed", f"{type(error).__name__}: {str(error)[:300]!r} at {place}"
    seconds = time.process_time() - start
    if verdict != "crashed" and seconds > HANG_SECONDS:
        return Outcome("hung", f"{verdict} after {seconds:.1f} s {text[:200]}", seconds)
    return Outcome(verdict, text, seconds)


def _wrong_message(text: str) -> str:
    """What a message of one line must not be, or nothing."""
    if len(text) > LONGEST_MESSAGE:
        return f"a message of {len(text)} characters"
    if any(
        ord(c) < 32 or 0x7F <= ord(c) < 0xA0 or 0xD800 <= ord(c) < 0xE000 or c in "\u2028\u2029" for c in text
    ):
        return "a message with line ends or control characters"
    return ""


def _place(error: BaseException) -> str:
    """The innermost line of ours that the error passed, as file:line."""
    found, traceback = "?", error.__traceback__
    while traceback is not None:
        name = Path(traceback.tb_frame.f_code.co_filename)
        if "surrogate" in name.parts or "features" in name.parts or "fuzz" in name.parts:
            found = f"{name.parent.name}/{name.name}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return found
