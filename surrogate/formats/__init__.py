"""Files of other programs: one reader per foreign format, each imported when it is first used."""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from surrogate.features.errors import InputError, nearest, require_regular

if TYPE_CHECKING:
    from surrogate.formats.imported import Imported


@dataclass(frozen=True, slots=True)
class Format:
    """A foreign format: its name on the command line, the module that reads it, what its ``read`` takes and needs."""

    name: str
    module: str
    summary: str
    options: frozenset[str]
    required: frozenset[str] = frozenset()
    finds_files: bool = False
    """True where the reader takes folders, and finds the files itself where no path is given."""

    def read(self, paths: Sequence[str | Path], **options: Any) -> "Imported":
        """The content of ``paths``.

        Raises `InputError` for an option that the format lacks or needs, or a wrong file.
        """
        given_names = {name for name, value in options.items() if value is not None}
        for name in sorted(given_names - self.options):
            known = sorted(self.options - {"progress"})
            raise InputError(
                f"{self.name} takes no {_flag(name)}; known: {', '.join(map(_flag, known))}{nearest(name, known)}"
            )
        for name in sorted(self.required - given_names):
            raise InputError(f"its files do not tell the {name}; give {_flag(name)}")
        if not paths and not self.finds_files:
            raise InputError(f"no {self.name} file given; give at least one path")
        for path in () if self.finds_files else paths:
            if Path(path).is_dir():
                raise InputError(f"{path}: a folder; name the files in it, as in {path}/*")
            require_regular(path)
            if not Path(path).is_file():
                raise InputError(
                    f"{path}: cannot be read (no such file); `seer import {self.name} --how` says how to get one"
                )
        return self._module().read(paths, **{name: options[name] for name in given_names})

    def how_to_get(self) -> str:
        """How a user obtains the files, in sentences (the reader's own documentation)."""
        return (self._module().__doc__ or "").strip()

    def _module(self) -> Any:
        return importlib.import_module(f"surrogate.formats.{self.module}")


def _flag(option: str) -> str:
    return "--" + option.replace("_", "-")


_ALWAYS = frozenset({"gpu", "max_bytes", "progress"})
_VERSIONED = _ALWAYS | {"library_version"}
_PROFILER = _VERSIONED | {"problems", "kernel", "numbering"}
_GPU = frozenset({"gpu"})
_ALL = (
    Format(
        "aiconfigurator",
        "aiconfigurator",
        "kernels of vLLM, SGLang and TensorRT-LLM: its wheel's tables",
        frozenset({"family", "gpus", "progress"}),
        frozenset({"family"}),
        finds_files=True,
    ),
    Format("seer-xls", "seer_xls", "SEER's Excel workbooks", _VERSIONED | {"numbering"}, _GPU),
    Format("nvprof", "nvprof", "nvprof logs: launches and metrics, CSV or text", _PROFILER),
    Format("ncu", "ncu", "Nsight Compute CSV and .ncu-rep reports", _PROFILER),
    Format("miopen", "miopen", "MIOpen find-db, versions 1 and 2, plain or .bz2", _VERSIONED),
    Format("cudnn-scope", "cudnn_scope", "google-benchmark JSON of cudnn_scope / dlperf", _VERSIONED),
    Format("lin-csv", "lin_csv", "GEMM timings of the recommendation-model notebook", _ALWAYS | {"time_unit"}, _GPU),
)
FORMATS: Mapping[str, Format] = MappingProxyType({each.name: each for each in _ALL})
"""Name on the command line → format."""
