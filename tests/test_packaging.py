"""Tests of dependencies and shipped files; slow tests build a wheel and use it in an empty folder."""

import ast
import gzip
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import surrogate
from tests.known import known_answers

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PACKAGES = ("features", "surrogate")
MAX_WHEEL_BYTES = 30 * 2**20
DISTRIBUTIONS = known_answers(__file__)["distributions"]
"""Import name → distribution, if they differ."""
NOT_DECLARED = known_answers(__file__)["not_declared"]
"""Modules that are used only if they are installed."""


CODE = {".py", ".ipynb", ".js", ".sh", ".c", ".cc", ".cpp", ".h", ".hpp", ".cu", ".cuh", ".cl", ".hip", ".ptx", ".ll"}
OWN_CODE = {
    "experiments/cpu_kernel.cl",
    "surrogate/collect/embedding_bag.cu",
    *(f"tests/collect/fake/{name}" for name in ("backend.c", "cuda.c", "cudnn.c", "fake.h")),
    *(f"tests/prediction/headers/{name}.c" for name in ("conv", "described", "families")),
}
"""Files of code in other languages than Python, all written for this project."""
SOURCE_TEXT = re.compile(
    rb"__global__|__kernel |#include [<\"]|@triton\.jit|\.visible \.entry|<script|def \w+\(self"
    rb"|\nimport \w|\nfrom \w+ import "
)
"""Patterns of source code; kernel signatures, which profilers write, do not match."""


@cache
def _imports(package: str) -> tuple[tuple[str, Path], ...]:
    return tuple(pair for path in (ROOT / package).rglob("*.py") for pair in _imports_of(path))


def _imports_of(path: Path) -> Iterator[tuple[str, Path]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names = [node.module]
        yield from ((name.partition(".")[0], path) for name in names)


def _names(requirements: list[str]) -> set[str]:
    return {re.split(r"[^\w-]", text)[0].lower() for text in requirements}


@pytest.mark.slow
def test_every_import_is_a_declared_dependency() -> None:
    extras = PROJECT["optional-dependencies"]
    declared = _names(PROJECT["dependencies"]).union(*map(_names, extras.values()))
    exempt = sys.stdlib_module_names | set(PACKAGES) | set(NOT_DECLARED)
    unknown = {
        f"{path.relative_to(ROOT)}: {name}"
        for package in PACKAGES
        for name, path in _imports(package)
        if name not in exempt and DISTRIBUTIONS.get(name, name).lower() not in declared
    }
    assert not unknown


def test_every_dependency_is_imported() -> None:
    imported = {DISTRIBUTIONS.get(name, name) for package in PACKAGES for name, _ in _imports(package)}
    assert _names(PROJECT["dependencies"]) <= imported


def test_packages_import_neither_experiments_nor_tests() -> None:
    assert not [path for package in PACKAGES for name, path in _imports(package) if name in ("experiments", "tests")]


def test_every_mentioned_extra_is_declared() -> None:
    """Pages and messages mention extras as ``'.[onnx]'`` and ``seer-surrogate[torch]``."""
    extra = re.compile(r"(?:seer-surrogate|['\" `]\.)\[([a-z][\w-]*)\]")
    files = [*ROOT.glob("*.md"), *(path for package in PACKAGES for path in (ROOT / package).rglob("*.[pm][yd]"))]
    mentions = {(name, path) for path in files for name in extra.findall(path.read_text(encoding="utf-8"))}
    assert {name for name, _ in mentions} >= {"onnx", "torch"}
    assert not [(name, path) for name, path in mentions if name not in PROJECT["optional-dependencies"]]


def test_package_project_and_changelog_have_one_version() -> None:
    assert surrogate.__version__ == version("seer-surrogate")
    first = re.search(r"^## (\S+) — \d{4}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert first is not None, "CHANGELOG.md starts with `## VERSION — DATE`"
    assert first[1] == PROJECT["version"]


def test_shipped_files_are_small_and_contain_no_local_path() -> None:
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*") if path.is_file()]
    kept = [path for path in files if "__pycache__" not in path.parts]
    assert {"py.typed"} <= {path.name for path in (ROOT / "features").iterdir()}
    assert sum(path.stat().st_size for path in kept) < 2 * MAX_WHEEL_BYTES  # a wheel is packed
    data = {".onnx", ".toml", ".json", ".parquet", ".ubj", ".npy", ".npz", ".gz"}
    pages = {".md", ".pyi", ".css", ".html", ".j2", ".mplstyle"}
    assert {path.suffix for path in kept if path.suffix} <= data | pages | {".py", ".typed", ".cu", ".in"}
    texts = (path for path in kept if path.suffix in (".py", ".toml", ".json", ".md"))
    homes = [str(ROOT) + os.sep, str(Path.home()) + os.sep]
    for path in texts:
        text = path.read_text(encoding="utf-8")
        assert not [home for home in homes if len(home) > 2 and home in text], path


@cache
def _tracked() -> tuple[Path, ...]:
    """Return the files of the repository; skip the test outside a git checkout."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("no checkout of git")
    return tuple(path for name in done.stdout.split("\0") if name and (path := ROOT / name).is_file())


def _parts(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield names and contents of a data file's parts: members of an archive, texts of a table, or the whole file."""
    name, content = path.relative_to(ROOT).as_posix(), path.read_bytes()
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            yield from ((f"{name}/{member}", archive.read(member)) for member in archive.namelist())
    elif name.endswith((".tar", ".tar.gz", ".tgz")):
        with tarfile.open(path) as archive:
            for member in archive:
                if file := archive.extractfile(member):
                    yield f"{name}/{member.name}", file.read()
    elif path.suffix == ".parquet":
        table = pq.ParquetFile(path)
        yield name, str(table.schema_arrow.metadata).encode()
        for field in table.schema_arrow:
            if pa.types.is_string(field.type) or pa.types.is_large_string(field.type):
                texts = table.read([field.name])[field.name].unique().to_pylist()
                yield f"{name}/{field.name}", "\n".join(filter(None, texts)).encode()
    else:
        yield name.removesuffix(".gz"), gzip.decompress(content) if path.suffix == ".gz" else content


def test_files_of_code_were_written_for_this_project() -> None:
    """Others' measurements are shipped, others' code is not, also not in archives."""
    code = {path.relative_to(ROOT).as_posix() for path in _tracked() if path.suffix in CODE and path.suffix != ".py"}
    assert code <= OWN_CODE
    archives = [
        path for path in _tracked() if path.suffix == ".zip" or ".tar" in path.suffixes or path.suffix == ".tgz"
    ]
    assert not [name for path in archives for name, _ in _parts(path) if Path(name).suffix in CODE]


@pytest.mark.slow
def test_no_data_file_contains_source_code() -> None:
    """Tables, compressed files and arrays are searched, too."""
    written = CODE | {".md", ".toml", ".j2"}
    data_files = [path for path in _tracked() if path.suffix not in written and ".ci" not in path.parts]
    assert {path.suffix for path in data_files} >= {".parquet", ".json", ".gz"}
    searched = 0
    for path in data_files:
        for name, content in _parts(path):
            found = SOURCE_TEXT.search(content)
            assert found is None, f"{name}: {found and found[0]}"
            searched += 1
    assert searched > len(data_files) / 2


def _run(*words: str | Path, cwd: Path, **environment: str) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SEER_"))}
    options = {"cwd": cwd, "env": {**clean, **environment}, "capture_output": True, "text": True, "check": False}
    done = subprocess.run(list(map(str, words)), **options)
    assert done.returncode == 0, f"{words}: {done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout


def test_a_checkout_without_symbolic_links_works(tmp_path: Path) -> None:
    """`surrogate/features` is a link; without it the top folder `features` is used."""
    for package in PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__", "*.ubj", "*.parquet", "*.npz", "*.npy")
        shutil.copytree(ROOT / package, tmp_path / package, symlinks=True, ignore=ignored)
    (tmp_path / "surrogate" / "features").unlink()
    code = "import surrogate; print(surrogate.__file__, surrogate.Conv(n=1, c=8, h=8, k=8, r=3).flops)"
    assert str(tmp_path) in _run(sys.executable, "-c", code, cwd=tmp_path)


def _pip(python: str | Path, *words: str) -> None:
    """Run pip; skip the test if it fails, for example without network."""
    done = subprocess.run([python, "-m", "pip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"pip fails here: {done.stderr.strip()[-300:]}")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the project's wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    _pip(sys.executable, "wheel", "--no-deps", "--quiet", "--wheel-dir", str(folder), str(ROOT))
    (found,) = folder.glob("*.whl")
    return found


@pytest.mark.slow
def test_the_wheel_contains_the_packages_data_and_metadata(wheel: Path) -> None:
    assert wheel.stat().st_size <= MAX_WHEEL_BYTES
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = archive.read(next(name for name in names if name.endswith("/METADATA"))).decode()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"surrogate", "seer_surrogate"}
    assert not [name for name in names if "__pycache__" in name or "test" in name.split("/")[-2:][0]]
    shipped = {path.relative_to(ROOT).as_posix() for path in (ROOT / "surrogate" / "bundled").rglob("*.*")}
    assert {name for name in shipped if "__pycache__" not in name} <= set(names)
    typed_and_data = {"py.typed", "gpus.toml", "kernels.toml", "families/gemm.py"}
    assert {f"surrogate/features/{name}" for name in typed_and_data} <= set(names)
    templates = {path.relative_to(ROOT).as_posix() for path in (ROOT / "surrogate").rglob("*.j2")}
    assert templates and templates <= set(names)
    assert {f"licenses/{name}" for name in PROJECT["license-files"]} == {
        name.partition(".dist-info/")[2] for name in names if "/licenses/" in name
    }
    assert f"Version: {PROJECT['version']}" in metadata and "License-Expression: Apache-2.0" in metadata


@pytest.mark.slow
def test_the_installed_wheel_works_in_an_empty_folder(wheel: Path, tmp_path: Path) -> None:
    """The folder has a user's package and module named `features`, which must not be imported."""
    place, empty = tmp_path / "environment", tmp_path / "empty folder"
    (empty / "features").mkdir(parents=True)
    (empty / "features" / "__init__.py").write_text("raise RuntimeError('the user\\'s own package')")
    (empty / "features.py").write_text("raise RuntimeError('the user\\'s own module')")
    venv.create(place, with_pip=True)
    python = place / ("Scripts" if os.name == "nt" else "bin") / "python"
    _pip(python, "install", "--quiet", str(wheel))
    seer = python.with_name("seer")
    code = "import surrogate; surrogate.Conv; print(surrogate.__file__, surrogate.__version__)"
    printed = _run(python, "-c", code, cwd=empty)
    assert str(place) in printed and PROJECT["version"] in printed
    assert PROJECT["version"] in _run(seer, "--version", cwd=empty)
    assert "WINOGRAD" in _run(seer, "select", "--gpu", "v100", "n32c256h14w14k256r3s3p1", cwd=empty)
    (empty / "net.csv").write_text("n,c,h,w,k,r,s,pad_h,pad_w,stride_h,stride_w\n32,64,56,56,64,3,3,1,1,1,1\n")
    assert "total_us" in _run(seer, "network", "net.csv", "--gpu", "t4", "--json", cwd=empty)
    printed = _run(seer, "compare", "--models", "roofline,linear-terms", "--folds", "3", "-o", "out", cwd=empty)
    assert "linear-terms" in printed and (empty / "out" / "report.html").is_file()
