"""Nothing that is loaded runs: no pickle, eval, shell or import at a file's word; parquet metadata decides nothing."""

import ast
import json
from pathlib import Path

import pytest
from surrogate.formats.parquet_file import open_file, read_columns

from surrogate.features.errors import InputError

ROOT = Path(__file__).resolve().parents[2]
NAMES = {"eval", "exec", "compile", "__import__", "import_module"}
MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
CALLS = {
    "os.system", "os.popen", "os.execv", "os.execvp", "yaml.load", "yaml.unsafe_load", "yaml.full_load", "torch.load",
    "torch.jit.load", "torch.export.load", "pandas.read_pickle", "pd.read_pickle", "subprocess.getoutput",
    "subprocess.getstatusoutput", "importlib.import_module",
}  # fmt: skip
DANGEROUS_TRUE = {"shell", "allow_pickle"}

ALLOWED = {
    ("experiments/catalogue.py", "import_module"): "the experiments' modules, named in NAMES",
    ("surrogate/__init__.py", "importlib.import_module"): "the package's own rooms, named in the code",
    ("surrogate/cli/groups.py", "importlib.import_module"): "the commands' modules, named in COMMANDS",
    ("surrogate/formats/__init__.py", "importlib.import_module"): "the readers' modules, named in FORMATS",
    ("surrogate/lazy_names.py", "importlib.import_module"): "the homes of public names, named in the code",
    (
        "surrogate/network/torch_module.py",
        "importlib.import_module",
    ): "MODULE:NAME, which the user names to be run",
}
"""(file, what) → why it runs nothing that a file says."""


def sources() -> list[Path]:
    """Every Python file that ships or makes results."""
    return sorted(p for room in ("features", "surrogate", "experiments") for p in (ROOT / room).rglob("*.py"))


def findings(tree: ast.AST) -> set[str]:
    """What in a file could run what was loaded."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.split(".")[0] in MODULES}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in MODULES:
            found.add(str(node.module))
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name in NAMES or name in CALLS or name.endswith(".read_pickle"):
                found.add(name)
            found |= {
                f"{k.arg}=" for k in node.keywords if k.arg in DANGEROUS_TRUE and not _is_false(k.value)
            }
            found |= {
                "weights_only=False" for k in node.keywords if k.arg == "weights_only" and _is_false(k.value)
            }
    return found


def _is_false(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is False


def test_no_code_runs_what_it_loads() -> None:
    forbidden = {
        (str(path.relative_to(ROOT)), what)
        for path in sources()
        for what in findings(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert forbidden == set(ALLOWED)


@pytest.mark.parametrize(
    "code",
    [
        "import pickle", "from joblib import load", "eval(x)", "exec(x)", "os.system(x)",
        "np.load(f, allow_pickle=True)",
        "np.load(f, allow_pickle=flag)", "subprocess.run(x, shell=True)", "torch.load(f, weights_only=True)",
        "read(f, weights_only=False)", "yaml.load(x)", "frame.read_pickle(x)",
    ],
)  # fmt: skip
def test_the_search_finds_them(code: str) -> None:
    assert findings(ast.parse(code))


def test_the_search_lets_the_harmless_be() -> None:
    harmless = (
        "re.compile(x); np.load(f, allow_pickle=False); subprocess.run([x], shell=False); ast.literal_eval(x)"
    )
    assert not findings(ast.parse(harmless))


def write(path: Path, field_metadata: dict[str, str] | None = None, pandas: object = None) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    field = pa.field("n", pa.binary() if field_metadata else pa.int64(), metadata=field_metadata)
    values = [b"cos\nsystem\n(S'true'\ntR."] if field_metadata else [5]
    metadata = {"pandas": json.dumps(pandas)} if pandas is not None else None
    pq.write_table(pa.table([pa.array(values, field.type)], pa.schema([field], metadata)), path)
    return path


@pytest.mark.parametrize("name", ["arrow.py_extension_type", "pandas.period", "x"])
def test_an_extension_type_is_refused(tmp_path: Path, name: str) -> None:
    extension = {"ARROW:extension:name": name, "ARROW:extension:metadata": "cos\nsystem\n(S'true'\ntR."}
    path = write(tmp_path / "a.parquet", extension)
    for read in (read_columns, open_file):
        with pytest.raises(InputError, match=r"'n' holds an extension type|not a readable parquet file"):
            read(path)


@pytest.mark.parametrize(
    "pandas",
    [
        [], "x", {}, {"columns": []}, {"index_columns": ["n"], "columns": [], "column_indexes": []},
        {"index_columns": [], "column_indexes": [{"pandas_type": "x", "numpy_type": "os.system"}],
         "columns": [{"name": "n", "field_name": "n", "pandas_type": "object", "numpy_type": "os.system",
                      "metadata": {"encoding": "pickle"}}]},
    ],
)  # fmt: skip
def test_pandas_metadata_decides_nothing(tmp_path: Path, pandas: object) -> None:
    frame, _ = read_columns(write(tmp_path / "a.parquet", pandas=pandas))
    assert frame.columns.tolist() == ["n"]
    assert frame["n"].tolist() == [5]
    assert frame["n"].dtype == "int64"
