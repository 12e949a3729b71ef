"""Damaged, forged and odd bundles: each is told in one line, nothing in one executes, nothing waits."""

import hashlib
import json
import os
import random
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from surrogate.bundle.bundle import Bundle, load, save
from surrogate.bundle.bundle_index import INDEX, MAX_INDEX_BYTES
from surrogate.dataset.rows import rows_of
from surrogate.features.errors import InputError
from surrogate.models import Support
from surrogate.models.blend import Blend
from surrogate.prediction.predictor import Predictor
from surrogate.uncertainty.conformal import ALL, Factors, Widths
from surrogate.uncertainty.domain import Domain

VALUES: list[Any] = [
    None, True, -1, 0, 1e308, float("nan"), float("inf"), 10**30, "", "../x", "\x00", [], {}, [1], {"a": 1}, [[[]]],
]  # fmt: skip


@pytest.fixture(scope="module")
def whole(table: Callable[..., pd.DataFrame], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small blend, its widths invented."""
    path = tmp_path_factory.mktemp("whole") / "bundle"
    rows = rows_of(table(8))
    model = Blend(**{"trees.rounds": 10, "process.inducing": 16}).fit(rows)
    widths = Widths({ALL: 0.3}, Factors((0.5,), (1.0, 2.0)))
    save(Bundle(model, Support.fit(rows), widths, Domain.of(rows.frame)), path)
    return path


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return shutil.copytree(whole, tmp_path / "bündel b")


def index_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / INDEX).read_bytes())


def forge(folder: Path, name: str, content: bytes) -> None:
    """Put ``content`` in the place of a file, with the hash that it has."""
    (folder / name).write_bytes(content)
    index = index_of(folder)
    index["sha256"][name] = hashlib.sha256(content).hexdigest()
    (folder / INDEX).write_text(json.dumps(index))


def told(folder: Path) -> str:
    """The one line."""
    with pytest.raises(InputError) as error:
        load(folder)
    text = str(error.value)
    assert "\n" not in text and str(folder) in text
    return text


def one_line_or_right(folder: Path) -> None:
    """Refused in one line, or answered with finite times."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # an overflow on the way to the refusal
            bundle = load(folder)
            found = Predictor(bundle, gpu="t4", backend="numpy").select("n8c64h28k64r3p1")
            Predictor(bundle, gpu="v100", backend="numpy").select("n8c64h28k64r3p1")
    except InputError as error:
        assert "\n" not in str(error)
        return
    assert np.isfinite([[one.lower_us, one.time_us, one.upper_us] for one in found.candidates]).all()
    json.dumps(found.to_dict(), allow_nan=False)


def changed(content: bytes, draw: random.Random) -> bytes:
    """JSON with one value, anywhere, replaced, renamed or gone."""
    values = json.loads(content)
    place, parent = values, values
    key: Any = None
    while isinstance(place, dict | list) and place and (key is None or draw.random() < 0.8):
        parent, key = (
            place,
            draw.choice(list(place)) if isinstance(place, dict) else draw.randrange(len(place)),
        )
        place = parent[key]
    act = draw.random()
    if act < 0.7:
        parent[key] = draw.choice(VALUES)
    elif act < 0.9 or isinstance(parent, list):
        del parent[key]
    else:
        parent["../x"] = parent.pop(key)
    return json.dumps(values).encode()


def flipped(content: bytes, draw: random.Random) -> bytes:
    """Cut, or some bytes others."""
    if draw.random() < 0.4:
        return content[: draw.randrange(len(content))]
    out = bytearray(content)
    for _ in range(draw.choice([1, 3, 20])):
        out[draw.randrange(len(out))] = draw.randrange(256)
    return bytes(out)


@pytest.mark.parametrize("seed", range(40))
def test_any_change_of_the_index(folder: Path, seed: int) -> None:
    change = changed if seed % 4 else flipped
    (folder / INDEX).write_bytes(change((folder / INDEX).read_bytes(), random.Random(seed)))
    one_line_or_right(folder)


@pytest.mark.parametrize("seed", range(60))
def test_any_forged_file(folder: Path, seed: int) -> None:
    """Its hash is right."""
    draw = random.Random(seed)
    name = draw.choice(sorted(index_of(folder)["sha256"]))
    change = changed if name.endswith(".json") and seed % 3 else flipped
    forge(folder, name, change((folder / name).read_bytes(), draw))
    one_line_or_right(folder)


@pytest.mark.parametrize("seed", range(10))
def test_any_damaged_file(folder: Path, seed: int) -> None:
    """Its hash is wrong: no parser sees it."""
    draw = random.Random(seed)
    name = draw.choice(sorted(index_of(folder)["sha256"]))
    before = (folder / name).read_bytes()
    after = flipped(before, draw)
    (folder / name).write_bytes(after)
    assert after == before or "differs from its hash" in told(folder)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("schema", 99, "upgrade seer-surrogate"),
        ("schema", "2", "schema in bundle.json"),
        ("schema", True, "schema in bundle.json"),
        ("feature_version", 10**30, "feature version"),
        ("sha256", [], "sha256 in bundle.json"),
        ("candidate", "kernel", "candidate in bundle.json"),
        ("devices", {"x": 1}, "devices in bundle.json"),
        ("card", {"unseen_gpu_factor": "3"}, "card.unseen_gpu_factor"),
        ("card", {"unseen_gpu_factor": float("nan")}, "card.unseen_gpu_factor"),
        ("card", {"data": []}, "card.data"),
        ("params", {"process.length": {}}, "setting process.length"),
        ("params", {"process.length": float("inf")}, "params in bundle.json"),
        ("model", "os.system", "os.system"),
    ],
)
def test_fields_of_the_index(folder: Path, field: str, value: Any, said: str) -> None:
    (folder / INDEX).write_text(json.dumps(index_of(folder) | {field: value}))
    assert said in told(folder) if field != "model" else said in _error(folder)


def _error(folder: Path) -> str:
    with pytest.raises(InputError) as error:
        load(folder)
    return str(error.value)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("widths.json", {"by_key": {"all": float("nan")}}),
        ("widths.json", {"by_key": {"fwd|GEMM": 1.0}}),
        ("widths.json", {"own_share": -1}),
        ("widths.json", {"distance": {"edges": [2, 1], "values": [1, 1, 1]}}),
        ("domain.json", {"settings": [1]}),
        ("domain.json", {"ranges": {}}),
        ("domain.json", {"versions": [7]}),
        ("domain.json", {"references": {"cudnn|fwd": {"shapes": [[1] * 13], "batches": [1, 10**30]}}}),
        ("support.json", {"exact": {"a": 7}}),
        ("support.json", {"general": []}),
        ("model/candidates.json", {"cudnn|fwd|GEMM": "1"}),
    ],
)
def test_nonsense_with_the_right_hash(folder: Path, name: str, values: dict[str, Any]) -> None:
    forge(folder, name, json.dumps(json.loads((folder / name).read_bytes()) | values).encode())
    assert "cannot be read" in told(folder)


@pytest.mark.parametrize("name", [INDEX, "support.json", "model/processes.json"])
def test_nesting_beyond_any_parser(folder: Path, name: str) -> None:
    deep = b"[" * 200_000
    if name == INDEX:
        (folder / name).write_bytes(deep)
    else:
        forge(folder, name, deep)
    told(folder)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes in the file system here")
@pytest.mark.parametrize("name", [INDEX, "support.json"])
def test_a_pipe_is_not_waited_for(folder: Path, name: str) -> None:
    (folder / name).unlink()
    os.mkfifo(folder / name)
    assert "do not use this bundle" in told(folder)


def test_links_out_of_the_folder_and_endless_files(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("{}")
    (folder / "support.json").unlink()
    (folder / "support.json").symlink_to(tmp_path / "secret")
    assert "outside the bundle" in told(folder)
    with (folder / INDEX).open("ab") as file:
        file.truncate(MAX_INDEX_BYTES + 1)
    assert "at most" in told(folder)


def test_what_the_index_does_not_name_is_never_read(folder: Path) -> None:
    (folder / "model" / "__init__.py").write_text("raise SystemExit('executed')")
    (folder / "support.pkl").write_bytes(b"cos\nsystem\n(S'exit 1'\ntR.")
    assert Predictor(load(folder), gpu="t4").select("n8c64h28k64r3p1").candidates
