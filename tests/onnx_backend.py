"""Count ONNX's own backend models by what `seer network` answers: ``python -m tests.onnx_backend`` prints it."""

import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from surrogate.features.errors import InputError
from surrogate.network.predict import load_predictors
from surrogate.network.read import read_network


def models() -> Iterator[tuple[str, bytes]]:
    """Yield the name and the file of each model: those that onnx generates, and those that it ships."""
    import onnx
    from onnx.backend.test.case import model, node

    cases = {case.name: case.model for case in (*node.collect_testcases(), *model.collect_testcases())}
    yield from ((name, proto.SerializeToString()) for name, proto in cases.items() if proto is not None)
    for path in sorted(Path(onnx.__file__).parent.glob("backend/test/data/**/*.onnx")):
        name = path.parent.name if path.stem == "model" else path.stem
        if cases.get(name) is None:
            yield name, path.read_bytes()


def counts(gpu: str = "h100-sxm") -> Counter[str]:
    """Return the number of models by status."""
    predictors = load_predictors(gpu)
    found: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx")
        for name, data in models():
            path.write_bytes(data)
            try:
                time = predictors.time(read_network(path))
                status = "names unsupported operators" if time.unsupported else "answered"
            except InputError:
                status = "refused in a line"
            except Exception as error:
                print(f"{name}: {type(error).__name__}: {error}")
                status = "traceback"
            found[status] += 1
    return found


if __name__ == "__main__":
    print(*(f"{status:30}{count:6,}" for status, count in counts().most_common()), sep="\n")
