"""Every reader of files that the package has: the files it starts from, how they are damaged, how it is called."""

import importlib.util
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz import seeds
from tests.fuzz.files import (
    Files,
    packed,
    parquet_structure,
    rehashed,
    text_bytes,
    xls_structure,
    zip_structure,
)
from tests.fuzz.mutations import Mutation, json_lines_structure, json_structure

Read = Callable[[Path], object]


@dataclass(frozen=True, slots=True)
class Reader:
    """A reader of the package under damage.

    ``seeds`` makes valid files (each a file, or with ``folder`` a folder); ``structure`` damages one file's content
    knowing what it is, ``after`` mends what hides the damage (hashes); ``real`` are files of the measured data, as
    patterns; ``needs`` the packages without which it cannot run; ``quick`` is false where one call takes long.
    """

    name: str
    owner: str
    seeds: Callable[[], list[Files]]
    read: Read
    structure: Callable[[str], Mutation | None] = lambda name: None
    folder: bool = False
    after: Callable[[Files], Files] = lambda files: files
    real: Sequence[str] = ()
    needs: Sequence[str] = ()
    quick: bool = True

    @property
    def missing(self) -> str:
        """A package that it needs and this environment lacks, or nothing."""
        return next((name for name in self.needs if importlib.util.find_spec(name) is None), "")


def _import(name: str, **options: Any) -> Read:
    """`seer import`: what is read must be a table, and one of problems must keep the dataset's rules."""

    def read(path: Path) -> object:
        from surrogate.dataset.check import check
        from surrogate.dataset.normalise import normalise

        from surrogate.formats import FORMATS

        imported = FORMATS[name].read([path], **options)
        assert len(imported.rows) or (imported.kernels is not None and len(imported.kernels))
        if imported.table == "problems" and "family" not in imported.rows:
            violations = check(normalise(imported.rows, name))
            assert not violations, str(violations[0])
        return imported

    return read


def _test_set(path: Path) -> object:
    from surrogate.dataset.problem_list import numbered_problems
    from surrogate.formats.foreign_file import read_lines

    found = numbered_problems(read_lines(path), path)
    assert found
    return found


def _dataset(path: Path) -> object:
    from surrogate.dataset.store import read_dataset

    found = read_dataset(path)
    assert len(found)
    return found.devices


def _problems(path: Path) -> object:
    from surrogate.dataset.problem_list import read_convs
    from surrogate.dataset.store import read_table

    read_convs(path)
    return read_table(path)


def _shards(path: Path) -> object:
    from surrogate.streaming.shards import open_parquet

    return open_parquet(path)


def _run_log(path: Path) -> object:
    from surrogate.collect.merge import merge_runs
    from surrogate.collect.replay import ReplayDevice

    merged = merge_runs([path])
    device = ReplayDevice(path)
    for planned in device.problems():
        device.candidates(planned.conv), device.heuristic(planned.conv), device.find(planned.conv)
    return merged


def _plan(path: Path) -> object:
    from surrogate.collect.plan_source import file_problems

    found = file_problems(path)
    assert found
    return found


def _params(path: Path) -> object:
    from surrogate.evaluation.tune.settings import read_settings

    return read_settings(path)


def _gpus(path: Path) -> object:
    from surrogate.features.gpu import registry

    return registry().with_file(path)


def _bundle(path: Path) -> object:
    from surrogate import load

    return load(path)


def _operators(path: Path) -> object:
    from surrogate.operators.bundle import load_operators
    from surrogate.operators.predictor import OperatorPredictor

    from surrogate.features.gpu import gpu
    from surrogate.features.operators import operator

    bundle = load_operators(path)
    found = OperatorPredictor(gpu("v100"), bundle).predict(
        [operator("gemm", m=1024, n=256, k=64), operator("relu", n=32, c=64, h=56, w=56)]
    )
    assert all(one.time_us >= 0 for one in found)
    return found


def _network(path: Path) -> object:
    from surrogate.network.read import read_network

    return read_network(path, batch=2)


def _trace(path: Path) -> object:
    from surrogate.trace.events.read import read_trace

    return read_trace(path)


def _execution(path: Path) -> object:
    from surrogate.trace.events.execution import read_execution_trace

    return read_execution_trace(path)


def _overheads(path: Path) -> object:
    from surrogate.trace.iteration.overheads import load_overheads

    return load_overheads(path)


def _report(path: Path) -> object:
    from surrogate.report.page import report_page
    from surrogate.report.results import read_results

    return report_page(read_results(path), {}, {})


def _cache(path: Path) -> object:
    from surrogate.collect.device import DeviceInfo
    from surrogate.features.conv import Conv
    from surrogate.prediction.cache import TuningCache

    return TuningCache(path).get(DeviceInfo("Tesla T4", "cudnn", "7.6.3"), Conv(**seeds.SIZES))


def _by_suffix(**mutations: Mutation) -> Callable[[str], Mutation | None]:
    return lambda name: mutations.get(Path(name).suffix.lstrip("."))


def _always(mutation: Mutation) -> Callable[[str], Mutation | None]:
    return lambda name: mutation


def _checked_line(data: bytes, random: Random) -> bytes:
    """One line's JSON changed, its checksum right."""
    lines = data.split(b"\n")
    at = random.randrange(max(len(lines) - 1, 1))
    text = json_structure(lines[at][9:], random)
    lines[at] = b"%08x %b" % (zlib.crc32(text), text)
    return b"\n".join(lines)


def _bundle_files(model: str) -> Reader:
    return Reader(
        f"bundle ({model})", "pick", lambda: seeds.bundle(model), _bundle, _by_suffix(json=json_structure), folder=True,
        after=lambda files: rehashed(files, "bundle.json"), quick=False,
    )  # fmt: skip


_PACKED = _by_suffix(gz=packed(text_bytes), bz2=packed(text_bytes))
_PACKED_JSON = _by_suffix(json=json_structure, gz=packed(json_structure), bz2=packed(json_structure))
_RAW = "raw/"

_ALL = (
    Reader("import seer-xls (.xls)", "fuzz", seeds.workbook, _import("seer-xls", gpu="v100"),
           _by_suffix(xls=xls_structure), needs=("xlwt",)),
    Reader("import seer-xls (.xlsx)", "fuzz", seeds.workbook_xlsx, _import("seer-xls", gpu="v100"),
           _by_suffix(xlsx=zip_structure), needs=("openpyxl",)),
    Reader("import nvprof", "fuzz",
           lambda: seeds.texts(".csv", seeds.NVPROF, seeds.NVPROF_TEXT, seeds.NVPROF_METRICS, pack=True),
           _import("nvprof"), _PACKED),
    Reader("import ncu", "fuzz", lambda: seeds.texts(".csv", seeds.NCU, seeds.NCU_LONG, pack=True), _import("ncu"),
           _PACKED, real=("traces/ncu_copy_blocked.csv",)),
    Reader("import miopen", "fuzz", lambda: seeds.texts(".txt", seeds.MIOPEN, pack=True),
           _import("miopen", gpu="mi210"), _PACKED, real=(f"{_RAW}miopen_*.txt",)),
    Reader("import cudnn-scope", "fuzz", lambda: seeds.texts(".json", seeds.SCOPE, pack=True), _import("cudnn-scope"),
           _PACKED_JSON, real=(f"{_RAW}cudnn_scope_dlperf*.gz",)),
    Reader("import lin-csv", "fuzz", lambda: seeds.texts(".csv", seeds.LIN, pack=True), _import("lin-csv", gpu="v100"),
           _PACKED),
    Reader("Test-set-II text", "fuzz", lambda: seeds.texts(".txt", seeds.TEST_SET, pack=True), _test_set, _PACKED),
    Reader("dataset (parquet)", "measure", seeds.dataset, _dataset, _always(parquet_structure),
           real=("cudnn_conv_partial_networks.parquet",)),
    Reader("problems (parquet)", "measure", seeds.dataset, _problems, _always(parquet_structure)),
    Reader("streamed dataset (parquet)", "measure", seeds.dataset, _shards, _always(parquet_structure)),
    Reader("run log", "measure", seeds.run_log, _run_log, _always(json_lines_structure)),
    Reader("plan, list of problems", "measure",
           lambda: seeds.texts(".txt", seeds.PLAN_TEXT, seeds.PLAN_CSV, seeds.PLAN_LINES, seeds.TEST_SET), _plan,
           _always(json_lines_structure)),
    Reader("settings (JSON)", "measure", lambda: seeds.texts(".json", seeds.PARAMS), _params, _always(json_structure)),
    Reader("gpus.toml", "fuzz", lambda: seeds.texts(".toml", seeds.GPUS), _gpus),
    *(_bundle_files(model) for model in
      ("linear-terms", "boosted-terms", "blend", "gp-terms", "mlp", "forest", "li-et-al", "seer-time-only",
       "roofline")),
    Reader("operator bundle", "netrace", seeds.operators, _operators, _by_suffix(json=json_structure), folder=True,
           after=lambda files: rehashed(files, "operators.json"), quick=False),
    Reader("ONNX", "netrace", seeds.onnx_graph, _network, needs=("onnx",)),
    Reader("exported program (.pt2)", "netrace", seeds.exported_program, _network, _always(zip_structure),
           needs=("torch",), quick=False),
    Reader("table of layers (parquet)", "netrace", lambda: [{"t.parquet": _layers()}], _network,
           _always(parquet_structure)),
    Reader("table of layers (CSV)", "netrace", lambda: seeds.texts(".csv", seeds.PLAN_CSV), _network),
    Reader("trace (Kineto JSON)", "netrace", seeds.kineto, _trace, _PACKED_JSON, real=("traces/edge_*.json.gz",)),
    Reader("trace (Nsight sqlite)", "netrace", seeds.nsys, _trace),
    Reader("execution trace", "netrace", seeds.execution_trace, _execution, _PACKED_JSON),
    Reader("overheads (JSON)", "netrace", lambda: seeds.texts(".json", seeds.OVERHEADS), _overheads,
           _always(json_structure)),
    Reader("results.json", "paper", seeds.results, _report, _by_suffix(json=json_structure), folder=True),
    Reader("tuning cache", "pick", seeds.tuning_cache, _cache, _always(_checked_line)),
)  # fmt: skip
READERS = {each.name: each for each in _ALL}
"""Reader by name, in the order of the table."""


def _layers() -> bytes:
    import io

    out = io.BytesIO()
    seeds.rows(3).drop(columns="algorithm").drop_duplicates().to_parquet(out)
    return out.getvalue()
