"""Exported programs run nothing: pickles and expressions in the archive stay unread."""

import json
import pickle
import zipfile
from pathlib import Path

import pytest

from surrogate.features.errors import InputError
from surrogate.network.read import read_network


class _Evil:
    """Unpickling it writes a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = str(mark)

    def __reduce__(self):
        return Path.touch, (Path(self.mark),)


@pytest.mark.parametrize(
    "sizes", ["2", "__import__('pathlib').Path({mark!r}).touch()"], ids=["number", "call"]
)
def test_nothing_in_the_archive_is_executed(tmp_path: Path, sizes: str) -> None:
    """Pickled weights and sample inputs, and a size that is a call."""
    mark, path = tmp_path / "executed", tmp_path / "evil.pt2"
    size = {"as_expr": {"expr_str": sizes.format(mark=str(mark))}}
    graph = {
        "tensor_values": {"x": {"sizes": [size], "dtype": 7}, "y": {"sizes": [size], "dtype": 7}},
        "nodes": [
            {
                "target": "torch.ops.aten.relu.default",
                "inputs": [{"name": "self", "arg": {"as_tensor": {"name": "x"}}}],
                "outputs": [{"as_tensor": {"name": "y"}}],
                "metadata": {},
            }
        ],
    }
    signature = {"input_specs": [{"user_input": {"arg": {"as_tensor": {"name": "x"}}}}]}
    program = {"graph_module": {"graph": graph, "signature": signature}}
    evil = pickle.dumps(_Evil(mark))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("evil/models/model.json", json.dumps(program))
        archive.writestr("evil/data/sample_inputs/model.pt", evil)
        archive.writestr("evil/data/weights/model.pt", evil)
        archive.writestr("evil/data.pkl", evil)
    try:
        read_network(path)
    except InputError as error:
        assert "\n" not in str(error)
    assert not mark.exists()
    pickle.loads(evil)  # the trap is a real one
    assert mark.exists()
