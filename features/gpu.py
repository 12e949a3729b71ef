"""GPUs by name: datasheet figures from `gpus.toml` and from a user's file named in ``SEER_GPUS``."""

import os
import re
from collections import ChainMap
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from statistics import geometric_mean
from typing import Any, TypeGuard

from .caches import cached_texts
from .elementwise import Number, maximum, where
from .errors import InputError, UnknownGpuError, nearest, parsed_toml, read_bounded, refusal

SCHEMA = 1
_MAX_FIGURE = 1e12
"""A limit above any figure of a GPU. Products of figures below it stay finite."""
MAX_FILE_BYTES = 4 * 2**20
"""Maximum bytes of a GPU file: thousands of GPUs."""
Row = Mapping[str, Any]
"""A row of a GPU file as TOML gives it: the keys of an architecture or of a GPU."""


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _MAX_FIGURE


def _is_text(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and bool(value.strip())


_Kind = tuple[str, Callable[[Any], bool]]
_KINDS: dict[str, _Kind] = {
    "text": ("a text", _is_text),
    "texts": ("a list of texts", lambda v: isinstance(v, list) and all(map(_is_text, v))),
    "vendor": ('"nvidia", "amd" or "intel"', lambda v: v in ("nvidia", "amd", "intel")),
    "count": ("a whole number of at least 1", lambda v: _is_number(v) and isinstance(v, int) and v >= 1),
    "positive": ("a number above 0", lambda v: _is_number(v) and v > 0),
    "amount": ("a number of at least 0", lambda v: _is_number(v) and v >= 0),
    "flag": ("true or false", lambda v: isinstance(v, bool)),
    "figures": (
        "a table of numbers above 0",
        lambda v: isinstance(v, dict) and all(_is_number(x) and x > 0 for x in v.values()),
    ),
}
"""Kind of a key in `gpu_keys.toml` → the rule for its value, in words and as a check."""


def read_gpu_file(path: Path, inherited: Mapping[str, Row]) -> tuple[dict[str, Row], dict[str, Row]]:
    """Return the architectures (``inherited`` ones first) and the GPUs of ``[gpu]`` with the keys of their
    architectures.

    Raises `InputError` if the file is unreadable or has another schema. It also raises for missing, unknown and
    ill-typed keys; the message names all of them.
    """
    content = _parse(path)
    declared = _parse(Path(__file__).with_name("gpu_keys.toml"))
    keys = {section: {key: _KINDS[kind] for key, kind in rows.items()} for section, rows in declared.items()}
    schema = content.get("schema", SCHEMA)
    if schema != SCHEMA:
        raise InputError(f"{path}: schema is {schema!r}; this version reads {SCHEMA}; update the program or the file")
    stray = sorted(set(content) - {"schema", "architecture", "gpu"})
    if stray:
        raise InputError(f"{path}: unknown section {', '.join(stray)}; known: schema, architecture, gpu")
    architectures = dict(inherited)
    for name, row in _section(path, content, "architecture").items():
        where = f"{path}: architecture.{name}"
        architectures[name] = _checked(where, row, keys["architecture"], keys["architecture-may-have"])
    rows = {}
    for name, row in _section(path, content, "gpu").items():
        where = f"{path}: gpu.{name}"
        if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name):
            raise InputError(f"{where}: a GPU's name is lower-case letters and digits joined by '-', as in my-gpu-16gb")
        architecture = row.get("architecture") if isinstance(row, dict) else None
        if _is_text(architecture) and architecture not in architectures:
            listed = f"{nearest(architecture, architectures)}; known: {', '.join(architectures)}"
            raise InputError(f"{where}: architecture {architecture!r} is unknown{listed}")
        own = _checked(where, row, keys["gpu"], ChainMap(*keys.values()))
        rows[name] = {**architectures[own["architecture"]], **own}
    return architectures, rows


def _parse(path: Path) -> dict[str, Any]:
    try:
        content = read_bounded(path, MAX_FILE_BYTES)
    except OSError as error:
        raise InputError(f"GPU file {path} cannot be read: {error.strerror}; check the path") from error
    try:
        return parsed_toml(content)
    except ValueError as error:
        raise InputError(f"GPU file {path} is not TOML: {error}") from error


def _section(path: Path, content: Row, name: str) -> dict[str, object]:
    section = content.get(name, {})
    if not isinstance(section, dict):
        raise InputError(f"{path}: {name} is {section!r}; give a table of rows, as in [{name}.NAME]")
    return section


def _checked(where: str, row: object, needed: Mapping[str, _Kind], allowed: Mapping[str, _Kind]) -> Row:
    """Return the row itself; raise one `InputError` that names all its faults."""
    if not isinstance(row, dict):
        raise InputError(f"{where} is {row!r}; give a table of keys: {', '.join(needed)}")
    kinds = {**needed, **allowed}
    faults = [f"{key} is missing" for key in needed if key not in row]
    for key, value in row.items():
        if key not in kinds:
            faults.append(f"{key} is unknown{nearest(key, kinds, count=1)}")
        elif not kinds[key][1](value):
            faults.append(f"{key} is {value!r}, must be {kinds[key][0]}")
    if faults:
        raise InputError(f"{where}: {'; '.join(faults)}")
    return row


_SEVERAL = (
    "; give {1}, and its number as --data-parallel {0} or --fsdp {0} (training), --tensor-parallel or --gpus (servers)"
)
ENVIRONMENT_VARIABLE = "SEER_GPUS"
BUNDLED = Path(__file__).with_name("gpus.toml")
TOLERANCE = 0.02
"""Relative difference up to which a computed figure agrees with the printed one."""
MAX_MEMORY_MHZ = 40_000
COMMON_BOARDS = ("p100-pcie-16gb", "v100-sxm2-16gb", "a100-sxm4-80gb", "h100-sxm")
"""The boards that a name means if it fits several boards and one of these."""
MIN_CAPPED_RATIO = 1.5
"""Minimum ratio of the architecture's fastest tensor rate to a GPU's rate for which the GPU counts as limited by its
maker. Smaller differences come from clocks and rounding."""
_BRANDS = {"nvidia", "amd", "tesla", "geforce", "quadro", "grid", "instinct", "radeon", "rx"}
_IGNORED_WORDS = _BRANDS | {"sramecc", "xnack", "amdgcn", "amdhsa", "r", "tm"}
"""Words that identify no board, as in ``gfx942:sramecc+:xnack-`` (AMD's features) and ``Intel(R) Arc(TM) Pro B60``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """The figures of one GPU, from its maker's datasheet.

    If a board holds two dies, a `Gpu` is one die, as the driver shows it. Peaks are dense, at the boost clock,
    accumulate in fp32, and count 2 FLOPs per multiply-add. A peak is 0.0 if there is no such unit. A figure is 0 if it
    is unknown.

    Attributes
    ----------
    name, aliases : str, tuple of str
        The registry name, and further names that `gpu` accepts.
    vendor, architecture : str
        ``nvidia``, ``amd`` or ``intel`` (``cpu`` for a measured CPU); the generation. On AMD it is the gfx name.
    compute_capability : float
        0.0 on AMD.
    sms, cores_per_sm : int
        On AMD an SM is a compute unit.
    boost_mhz : float
        The boost clock.
    fp64_tflops, fp16_tflops, fp32_tflops : float
        Rates without tensor cores in TFLOP/s.
    fp16_tensor_tflops, bf16_tensor_tflops, tf32_tflops, fp32_matrix_tflops : float
        Peaks of tensor cores, or of AMD's matrix cores, in TFLOP/s.
    fp8_tensor_tflops, fp4_tensor_tflops, int8_tensor_tflops : float
        Tensor-core peaks for 8-bit and 4-bit floats and 8-bit integers in TFLOP/s.
    dram_gbs, pcie_gbs : float
        Bandwidths in GB/s; PCIe in one direction.
    l2_bytes, shared_per_sm_bytes, memory_bytes : int
        Sizes of memories.
    source : str
        The origin of the figures.
    checked : bool
        True if a second source confirms the figures.
    board_watts : float
        The board's power limit in W.
    fp32_gflops_per_watt : float
        fp32 GFLOP/s per W of board power, if power limits matrix products.
    fp32_sustained_share : float
        Share of the fp32 peak that large matrix products reach without a limit of power.
    dram_share : float
        Share of ``dram_gbs`` that copies reach.
    """

    name: str
    aliases: tuple[str, ...] = ()
    vendor: str = ""
    architecture: str = ""
    compute_capability: float = 0.0
    sms: int = 0
    cores_per_sm: int = 0
    boost_mhz: float = 0.0
    fp64_tflops: float = 0.0
    fp16_tflops: float = 0.0
    fp16_tensor_tflops: float = 0.0
    bf16_tensor_tflops: float = 0.0
    tf32_tflops: float = 0.0
    fp32_matrix_tflops: float = 0.0
    dram_gbs: float = 0.0
    l2_bytes: int = 0
    shared_per_sm_bytes: int = 0
    memory_bytes: int = 0
    pcie_gbs: float = 0.0
    source: str
    checked: bool = False
    measured: Mapping[str, float] = field(default_factory=dict, compare=False)
    """Measured figures by name, separate from the datasheet; each name ends in its unit."""
    datasheet: Mapping[str, float] = field(default_factory=dict, compare=False)
    """Printed figures that follow from other figures; `contradictions` compares them."""
    fp8_tensor_tflops: float = 0.0
    fp4_tensor_tflops: float = 0.0
    int8_tensor_tflops: float = 0.0
    board_watts: float = 0.0
    fp32_gflops_per_watt: float = 0.0
    fp32_sustained_share: float = 1.0
    dram_share: float = 0.9
    tensor_pj_per_flop: float = 0.0
    """Energy of a bf16 FLOP in pJ, for boards that reached their power limit in long products; else 0.0."""
    link_gbs: float = 0.0
    """Bandwidth of the links to other GPUs (NVLink, Infinity Fabric), one direction, all links; 0.0 if there is only
    PCIe, or if unknown."""
    link_peers: int = 0
    """Number of GPUs that the links reach in a mesh; 0 if all links serve any number of GPUs (a switch)."""
    memory_bus_bits: int = 0
    """Width of the interface to the DRAM; 0 if unknown."""

    @property
    def product_line(self) -> str:
        """The product line: on AMD, GCN and CDNA are one line and RDNA is another; other vendors have one line each."""
        return self.architecture[:4] if self.vendor == "amd" else self.vendor

    def exchange_gbs(self, ranks: Number) -> Number:
        """Return the bandwidth in GB/s, in one direction, at which ``ranks`` GPUs exchange data with one another.

        In a mesh each peer has links of its own, so the links to absent GPUs are idle. GPUs that no link reaches
        exchange over PCIe.
        """
        if not self.link_peers:
            return self.link_gbs or self.pcie_gbs
        reached = self.link_gbs * maximum(ranks - 1, 1) / self.link_peers
        return where(ranks - 1 > self.link_peers, self.pcie_gbs, reached)

    def sustained_tflops(self, fp32_peak: float) -> float:
        """Return the rate of large fp32 matrix products in TFLOP/s, given a peak in TFLOP/s.

        Other instructions take a share of the issue slots. If the board's power is known, it also limits the
        multiply-adds: a board of 70 W falls to half its boost clock.
        """
        reached = self.fp32_sustained_share * fp32_peak
        return min(reached, self.board_watts * self.fp32_gflops_per_watt / 1e3 or reached)

    @property
    def fp32_tflops(self) -> float:
        """Vector fp32 peak in TFLOP/s: SMs · cores · 2 · boost clock (AMD: no packed or dual issue)."""
        return self.sms * self.cores_per_sm * 2 * self.boost_mhz / 1e6

    @property
    def memory_clock_mhz(self) -> float | None:
        """Half the data rate of a pin, as drivers report it: 5500 MHz for 11 Gbit/s; None if the width is unknown."""
        return self.dram_gbs * 4e3 / self.memory_bus_bits if self.memory_bus_bits else None

    def computed_figures(self) -> dict[str, float]:
        """Return the figures that follow from others, by their names in `datasheet`."""
        peaks = {each.name: getattr(self, each.name) for each in fields(self) if each.name.endswith("_tflops")}
        fp32 = {"fp32_tflops": self.fp32_tflops, "fp32_dual_tflops": 2 * self.fp32_tflops}
        counts = {"cores": self.sms * self.cores_per_sm, "memory_clock_mhz": self.memory_clock_mhz or 0.0}
        return peaks | fp32 | counts

    def contradictions(self) -> list[str]:
        """Return the figures of `datasheet` that differ from the computed ones, with both values.

        They differ by more than `TOLERANCE` and by more than half of the last printed digit.
        """
        computed, found = self.computed_figures(), []
        for name, printed in self.datasheet.items():
            last_digit = 10.0 ** int(Decimal(repr(printed)).as_tuple().exponent)
            if abs(computed[name] - printed) > max(TOLERANCE * printed, last_digit / 2):
                found.append(f"datasheet.{name} is {printed!r}, computed is {computed[name]:.5g}")
        return found

    def to_dict(self) -> dict[str, object]:
        """Return all fields and ``fp32_tflops`` as JSON values."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return values | {"aliases": list(self.aliases), "fp32_tflops": self.fp32_tflops}


def unlisted_gpu(name: str, similar: Collection[Gpu] = ()) -> Gpu:
    """Return a GPU that no registry has: it has no vendor, and its figures are 0.

    If the GPUs ``similar`` are given, its fp32 peak and bandwidth are the geometric means of theirs.
    """
    unknown = Gpu(name=name, source="only its name is known", checked=False)
    if not similar:
        return unknown
    tflops = geometric_mean(each.fp32_tflops for each in similar)
    dram_gbs = geometric_mean(each.dram_gbs for each in similar)
    return replace(unknown, sms=1, cores_per_sm=1, boost_mhz=tflops * 1e6 / 2, dram_gbs=dram_gbs)


def _from_row(name: str, row: Row) -> Gpu:
    """Return the GPU of a checked row; missing peaks follow by ratio from its fp32 peak or its fp16 tensor peak."""
    figures = {key: float(value) for key, value in row.items() if type(value) in (int, float)}
    fp32 = figures["sms"] * figures["cores_per_sm"] * 2 * figures["boost_mhz"] / 1e6
    tensor = figures["fp16_tensor_tflops"]
    peaks = {f"{unit}_tflops": fp32 * figures[f"{unit}_per_fp32"] for unit in ("fp64", "fp16", "fp32_matrix")}
    for unit in ("bf16", "fp8", "fp4", "int8"):
        peaks[f"{unit}_tensor_tflops"] = tensor * figures.get(f"{unit}_per_tensor", 0.0)
    peaks["tf32_tflops"] = tensor * figures["tf32_per_tensor"]
    sizes = (("l2", "mib", 20), ("shared_per_sm", "kib", 10), ("memory", "gib", 30))
    memories = {f"{memory}_bytes": round(figures[f"{memory}_{unit}"] * 2**power) for memory, unit, power in sizes}
    # A key that is a field is used unchanged and replaces a peak that follows by ratio.
    given: dict[str, Any] = {
        each.name: (figures if each.type is float else row)[each.name] for each in fields(Gpu) if each.name in row
    }
    return Gpu(name=name, **{**peaks, **memories, **given, "aliases": tuple(row["aliases"])})


@dataclass(frozen=True, slots=True)
class GpuRegistry:
    """GPUs by name or alias. It never changes: ``with_file`` returns a larger registry.

    Raises `InputError` if two GPUs have the same name.
    """

    gpus: tuple[Gpu, ...]
    architectures: Mapping[str, Row] = field(repr=False)
    _labels: Mapping[str, Gpu] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        labels: dict[str, Gpu] = {}
        for board in self.gpus:
            for label in (board.name, *board.aliases):
                other = labels.setdefault(_key(label), board)
                if other.name != board.name:
                    raise refusal("gpu_twice", label=label, names=f"{other.name} and to {board.name}")
        object.__setattr__(self, "_labels", labels)

    def find(self, name: str) -> Gpu:
        """Return the GPU of a name or alias, ignoring case, spaces, dashes, underscores and brand words (Tesla).

        A shortened name is accepted if it fits one GPU only ("p100-sxm2"), or if one of `COMMON_BOARDS` is among the
        GPUs that it fits ("a100"). Raises `InputError` with the candidates if it fits several others ("titan"), and
        with the nearest names if it fits no GPU.
        """
        exact = self._labels.get(_key(name))
        if exact is not None:
            return exact
        part = _MIG_NAME.fullmatch(name)
        if part:
            return _mig_instance(self.find(part["board"]), name, int(part["slices"]), float(part["gib"]))
        fitting = self.fitting(name)
        common = [board for board in fitting if board.name in COMMON_BOARDS]
        if len(common) == 1 or len(fitting) == 1 or _WITH_UNITS.fullmatch(name):
            return (common or fitting)[0]
        if fitting:
            raise UnknownGpuError(
                f"GPU {name!r} fits several; give one of: {', '.join(board.name for board in fitting)}"
            )
        several = re.fullmatch(r"(\d+) ?[x×*] ?(.+)", name)
        hint = _SEVERAL.format(*several.groups()) if several else nearest(name, self.labels)
        words = {"name": name, "hint": hint, "variable": ENVIRONMENT_VARIABLE}
        raise UnknownGpuError(str(refusal("gpu", **words)))

    @property
    def labels(self) -> list[str]:
        """All accepted names: bare family names, then every name and alias."""
        labels = [label for board in self.gpus for label in (board.name, *board.aliases)]
        return [*(board.partition("-")[0] for board in COMMON_BOARDS), *labels]

    def ambiguity_note(self, name: str) -> str | None:
        """Return a note if ``name`` fits several boards and `find` returns the commonest one; else None.

        A driver's full name (NVIDIA H200) means one board, even if other names begin with it (NVIDIA H200 NVL).
        """
        board = self.find(name)
        others = [other.name for other in self.fitting(name) if other is not board]
        full = name.replace("_", " ")
        is_full = full in board.aliases and full.startswith(f"{board.vendor.upper()} ")
        if not others or is_full or _key(name) == _key(board.name):
            return None
        return f"GPU {name} is taken as {board.name}, its commonest board; others: {', '.join(others)}"

    def contradicts(self, board: str, name: str) -> bool:
        """Return True if ``name``, such as an architecture and its units, fits other boards only."""
        with suppress(InputError):
            fitting = self.fitting(name)
            return bool(fitting) and self.find(board) not in fitting
        return False

    def fitting(self, name: str) -> list[Gpu]:
        """Return the boards with a label that ``name`` shortens, or of an architecture that it is the name of.

        An architecture may be a compute capability (``sm_90a``, ``compute_80``, ``8.6``), and on AMD a number of
        compute units may follow it (``gfx942:sramecc+:xnack-_304``).
        """
        if match := _WITH_UNITS.fullmatch(name):
            return self.with_units(match[1], int(match[2]))
        match = _CAPABILITY.fullmatch(name)
        capability = float(f"{match[1] or match[2]}.{match[3]}") if match else -1.0
        words = _tokens(name)  # once: a file may hold a name of megabytes

        def fits(board: Gpu) -> bool:
            labels = (board.name, *board.aliases, board.architecture)
            return board.compute_capability == capability or any(_shorten(words, label) for label in labels)

        return [board for board in self.gpus if fits(board)]

    def with_units(self, architecture: str, units: int) -> list[Gpu]:
        """Return the boards of an architecture with a number of compute units, as ``gfx942`` and 304; commonest first.

        RDNA's drivers count pairs of compute units (work-group processors), so half of a board's units fits there, too.
        Raises `InputError` if no board fits.
        """
        boards = [board for board in self.gpus if _key(board.architecture) == _key(architecture)]
        paired = 2 * units if boards and boards[0].product_line == "gfx1" else 0
        for count in (units, paired):
            if fitting := [board for board in boards if board.sms == count]:
                return fitting
        choices = ", ".join(f"{board.name} has {board.sms}" for board in boards) or "no GPU has this architecture"
        raise UnknownGpuError(str(refusal("compute_units", architecture=architecture, units=units, choices=choices)))

    def with_file(self, path: str | os.PathLike[str]) -> "GpuRegistry":
        """Return this registry with the GPUs of a TOML file (layout: `gpus.toml`) added; a row replaces a GPU of the
        same name.

        Raises `InputError` that names every missing, unknown and ill-typed key.
        """
        architectures, rows = read_gpu_file(Path(path), self.architectures)
        added = [_from_row(name, row) for name, row in rows.items()]
        for board in added:
            unknown = [f"datasheet.{key}" for key in board.datasheet if key not in board.computed_figures()]
            if unknown:
                figures = ", ".join(board.computed_figures())
                raise InputError(f"{path}: gpu.{board.name}: {', '.join(unknown)} is unknown; known: {figures}")
            if (clock_mhz := board.memory_clock_mhz or 0.0) > MAX_MEMORY_MHZ:
                rule = f"a memory clock of {clock_mhz:,.0f} MHz (at most {MAX_MEMORY_MHZ:,}); dram_gbs is in GB/s"
                raise InputError(f"{path}: gpu.{board.name}: dram_gbs over memory_bus_bits is {rule}")
        return GpuRegistry((*(board for board in self.gpus if board.name not in rows), *added), architectures)


_WITH_UNITS = re.compile(r"((?:amdgcn-amd-amdhsa--)?gfx[0-9a-f]{3,4}(?::\w+[+-])*)[:_](\d{1,6})", re.I | re.A)
_CAPABILITY = re.compile(r"(?:(?:sm|compute|cc|compute capability)[ _]?(\d{1,3})\.?|(\d{1,3})\.)(\d)[af]?", re.I | re.A)
_MIG_NAME = re.compile(r"(?P<board>.+) MIG (?P<slices>[1-7])g\.(?P<gib>\d+)gb", re.I | re.A)
"""The name of a MIG instance as the driver reports it, as in ``NVIDIA H100 80GB HBM3 MIG 1g.10gb``."""


def _mig_instance(board: Gpu, name: str, slices: int, gib: float) -> Gpu:
    """Return a MIG instance of ``slices`` of a board's seven slices and ``gib`` of its memory.

    A slice has an eighth of the SMs, rounded to pairs.
    """
    sms = min(slices * 2 * round(board.sms / 16), board.sms)
    peaks = [each.name for each in fields(Gpu) if each.name.endswith("_tflops")]
    compute = {peak: getattr(board, peak) * sms / board.sms for peak in peaks}
    share = min(1.0, gib * 2**30 / board.memory_bytes)
    memory = {figure: round(getattr(board, figure) * share) for figure in ("l2_bytes", "memory_bytes")}
    source = f"{board.name}'s datasheet, in its slices' share"
    facts = {"name": name, "aliases": (), "sms": sms, "dram_gbs": board.dram_gbs * share, "source": source}
    return replace(board, **facts, checked=False, datasheet={}, **compute, **memory)


def gpu(name: str) -> Gpu:
    """Return a GPU by name.

    Parameters
    ----------
    name : str
        A registry name or an alias, in any spelling that `GpuRegistry.find` accepts.

    Returns
    -------
    Gpu

    Raises
    ------
    InputError
        If the name is no text, fits several GPUs, or fits no GPU.
    """
    if not isinstance(name, str):
        raise UnknownGpuError(f"the GPU is a {type(name).__name__}; give its name, as in h100-sxm")
    return _find(name, os.environ.get(ENVIRONMENT_VARIABLE, ""))


def canonical(name: str) -> str:
    """Return the registry name of a GPU, or ``name`` itself if no registry has the device."""
    try:
        return gpu(name).name
    except UnknownGpuError:
        return name


def gpus() -> tuple[Gpu, ...]:
    """Return all registered GPUs: the bundled ones, then those in the file named in ``SEER_GPUS``.

    Returns
    -------
    tuple of Gpu

    Raises
    ------
    InputError
        If the file cannot be read or one of its rows is wrong.
    """
    return registry().gpus


def uncapped(board: Gpu) -> Gpu:
    """Return the GPU with the tensor rate per SM and clock of its architecture's fastest GPU.

    Makers limit the tensor units of boards for export and for games. The other figures stay the same. The GPU itself is
    returned if its rate is not limited (see `MIN_CAPPED_RATIO`).
    """

    def rate(of: Gpu) -> float:
        return of.fp16_tensor_tflops / (of.sms * of.boost_mhz)

    fastest = max((other for other in gpus() if other.architecture == board.architecture), key=rate, default=board)
    if board.vendor != "nvidia" or rate(fastest) < MIN_CAPPED_RATIO * rate(board) or not rate(board):
        return board
    share = board.sms * board.boost_mhz / (fastest.sms * fastest.boost_mhz)
    units = ("tf32_tflops", *(each.name for each in fields(Gpu) if each.name.endswith("tensor_tflops")))
    return replace(board, **{unit: max(getattr(board, unit), share * getattr(fastest, unit)) for unit in units})


def registry() -> GpuRegistry:
    """Return the bundled GPUs with those of the file that ``SEER_GPUS`` names, if it is set. Files are read once."""
    return _registry(os.environ.get(ENVIRONMENT_VARIABLE, ""))


@cached_texts(512)
def _find(name: str, user_file: str) -> Gpu:
    return _registry(user_file).find(name)


@lru_cache(maxsize=8)
def _registry(user_file: str) -> GpuRegistry:
    if user_file:
        return _registry("").with_file(user_file)
    return GpuRegistry((), {}).with_file(BUNDLED)


def _tokens(label: str) -> list[str]:
    return [word for word in re.split(r"[^a-z0-9]+", label.casefold()) if word and word not in _IGNORED_WORDS]


def _key(label: str) -> str:
    return "".join(_tokens(label)) or label


def _shorten(words: list[str], label: str) -> bool:
    """Return True if ``words`` begin with the first word of ``label`` and hold no word that ``label`` lacks."""
    label_words = _tokens(label)
    return bool(words) and words[0] == label_words[0] and set(words) <= set(label_words)


CPU_LANES = 16
"""Nominal fp32 lanes of a core. The clock is chosen so that cores · lanes · 2 · clock is the measured peak."""


def cpu_device(name: str, properties: Mapping[str, float]) -> Gpu:
    """Return a measured CPU as a `Gpu`, so that it serves as a device; its cores are the SMs.

    ``properties`` are ``threads_used``, ``gemm_gflops`` (2 FLOPs per multiply-add), ``copy_gbs`` and
    ``last_level_cache_bytes``. Raises `InputError` if a figure is missing or not positive.
    """
    try:
        cores, cache = (int(properties[key]) for key in ("threads_used", "last_level_cache_bytes"))
        gflops, copy_gbs = (float(properties[key]) for key in ("gemm_gflops", "copy_gbs"))
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"device {name!r}: its properties lack {error}; collect again with `seer collect`") from None
    if min(cores, gflops, copy_gbs) <= 0:
        raise InputError(f"device {name!r}: a measured figure is not positive; collect again with `seer collect`")
    return Gpu(
        name=name,
        vendor="cpu",
        architecture="cpu",
        sms=cores,
        cores_per_sm=CPU_LANES,
        boost_mhz=gflops * 1e3 / (cores * CPU_LANES * 2),
        fp64_tflops=gflops / 2e3,
        dram_gbs=copy_gbs,
        l2_bytes=max(cache, 1),
        shared_per_sm_bytes=32 * 1024,
        source="measured with the run that this device's rows come from",
    )
