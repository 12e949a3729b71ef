"""Recorded calls of small programs: the shipped table, and its recorder on a program of this project."""

from contextlib import nullcontext
from math import inf
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner

from experiments import program_calls, small_networks
from experiments.small_networks import restored, stored
from surrogate.features.conv import Conv
from surrogate.network.aten_call import UNKNOWN, Call, Tensor
from tests.known import known_answers

PROGRAM = known_answers(__file__)["program"]


def test_the_table_contains_calls_without_layer_names() -> None:
    """ResNet-18 has 20 convolutions and one product."""
    table = pd.read_parquet(small_networks.FOLDER / small_networks.CALLS)
    assert table.columns.tolist() == [*small_networks.PROGRAM, "call"]
    assert set(table[small_networks.PROGRAM].itertuples(index=False, name=None)) == set(small_networks.recorded())
    assert not any(call.name for calls in small_networks.recorded().values() for call in calls)
    network = small_networks.read("new", "level3", "9_ResNet18.py")
    assert network is not None and len(network.convs) == 20
    assert [layer.operator for layer in network.layers].count("addmm") == 1
    assert small_networks.read("new", "level3", "unknown.py") is None


def test_a_call_is_the_same_after_json() -> None:
    """Tensors in lists and unknown values are restored; an object of torch becomes its text."""
    image = Tensor((2, 3, 8, 8), "bf16", needs_gradient=True, buffer="x", channels_last=True)
    arguments = {"self": image, "tensors": [Tensor(), Tensor((), "fp64", floating=False, constant=True)]}
    values = {"dim": [1, -1], "p": 0.5, "train": True, "bias": None, "mode": "same", "scale": UNKNOWN, "low": -inf}
    call = Call("some_op", arguments | values, (image, Tensor((3,), parameter=True)), "layer.some_op")
    assert restored(stored(call)) == call
    assert restored(stored(Call("relu", {"self": Tensor((1,))}))) == Call("relu", {"self": Tensor((1,))})
    assert restored(stored(Call("empty", {"layout": nullcontext}))).arguments == {"layout": str(nullcontext)}


def test_programs_of_a_folder_are_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder has a program that runs and one that fails, and lacks a third one."""
    pytest.importorskip("torch")
    keys = [("new", "level1", "1_conv+relu.py"), ("new", "level1", "2_fails.py"), ("old", "level2", "3_missing.py")]
    measured = pd.DataFrame(keys, columns=small_networks.PROGRAM)
    monkeypatch.setattr(program_calls, "measured", lambda: measured)
    folder = tmp_path / "new" / "level1"
    folder.mkdir(parents=True)
    (folder / "1_conv+relu.py").write_text(PROGRAM)
    (folder / "2_fails.py").write_text("import no_such_package")
    output = tmp_path / small_networks.CALLS
    done = CliRunner().invoke(program_calls.main, [str(folder), "-o", str(output)])
    assert done.exit_code == 1 and "no measured program" in done.output and not output.exists()
    done = CliRunner().invoke(program_calls.main, [str(tmp_path), "-o", str(output)])
    assert done.exit_code == 0, done.output
    assert "2_fails.py: skipped, No module named 'no_such_package'" in done.output
    assert "2 calls of 1 programs" in done.output
    monkeypatch.setattr(small_networks, "FOLDER", tmp_path)
    calls = small_networks.recorded.__wrapped__()[keys[0]]
    assert [call.op for call in calls] == ["convolution", "relu"]
    (conv,) = (layer.problem for layer in small_networks.network_of("own", calls).layers[:1])
    assert isinstance(conv, Conv) and (conv.n, conv.c, conv.h, conv.k, conv.r) == (2, 3, 10, 8, 3)
