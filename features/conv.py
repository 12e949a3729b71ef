"""Convolutions: the class `Conv`, its texts, and the family of convolutions.

A convolution's text has one of three forms:

- ``n32c256h14w14k256r3s3p1u1``;
- flags, as in ``-n 32 -c 256 -H 14 …``;
- a line that MIOpen logs under ``MIOPEN_ENABLE_LOGGING_CMD=1``, such as ``./bin/MIOpenDriver
  convfp16 -n 32 -c 256 -H 14 -W 14 -k 256 -y 3 -x 3 -p 1 -q 1 -m conv -g 1 -F 1 -t 1``.

Source of the driver's names: ROCm/MIOpen, driver/conv_driver.hpp.

The family has three groups of columns: of the problem, of an algorithm on the problem, and of setting and machine.
Sizes are base-2 logarithms, so that a tree's threshold is a ratio.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Annotated, Any, ClassVar

import numpy as np

from . import problem as problems, roofline, terms as formulas
from .algorithms import LIBRARIES, MECHANISM_CODE, algorithms, mechanism_of, unsupported_reason
from .elementwise import MAX_INT32, Number, ceil_div, checked_int, log2, log2_for, maximum, where
from .errors import InputError, check_choice, refusal
from .family import DECLARED, Candidate, Family, Formula, ProblemTerms
from .gpu import Gpu, gpu
from .problem import FOLLOWS, PADDING, SIZE_COLUMNS, STEP, ConvColumns, InNetwork, Problem, Size, declared_sizes
from .roofline import MACHINE_NAMES, Machine, machine, machine_features, mechanism_b_max, missing_units, roofline_us
from .terms import MECHANISM_TERMS, KernelTerms, Sized, fits, is_depthwise, sized
from .workspace import workspace_bytes

SETTINGS = problems.CONV_SETTINGS
"""Setting of a convolution → its allowed values."""
_TAPS = "distance of the filter's taps, 1 where dense"
_SIZES = attrgetter(*SIZE_COLUMNS)
_STEPS = attrgetter(*SIZE_COLUMNS[7:13])
_TRAITS = attrgetter("r", "s", "stride_h", "stride_w")
LETTERS: dict[str, str] = dict(zip("nchwkrspquvljg", SIZE_COLUMNS, strict=True))
"""Letter in a text → field of `Conv`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conv(InNetwork):
    """A 2-D convolution (cross-correlation). Sizes always describe the *forward* problem.

    All sizes are integers; arrays are in `ConvColumns`. A convolution is immutable and hashable.

    Parameters
    ----------
    n, c, h, w : int
        Input: batch, channels, height, width in pixels. ``w`` defaults to ``h``.
    k, r, s : int
        Filter: output channels, height, width. ``s`` defaults to ``r``. The filter is k × c/groups × r × s.
    pad_h, pad_w : int
        Zeros on each side in pixels. ``pad_w`` defaults to ``pad_h``.
    stride_h, stride_w, dilation_h, dilation_w : int
        Steps of the filter, and distances of its taps. The width's default to the height's.
    groups : int
        Groups of channels; it divides ``c`` and ``k``.
    dtype : str
        A key of `DTYPES`: fp64, fp32, fp16, bf16 or int8.
    math : str
        One of `MATHS`: fma, default, tensor_op or tensor_op_allow_conversion.
    layout : str
        NCHW or NHWC.
    direction : str
        fwd, bwd_data (the input's gradient) or bwd_filter (the filter's gradient).

    Raises
    ------
    InputError
        If a size is out of range, or a setting is unknown. Also if groups do not divide the channels, or the filter
        exceeds the padded input.
    """

    kind: ClassVar[str] = "conv"
    HAS_ALGORITHMS: ClassVar[bool] = True

    n: Annotated[int, Size("batch", "images")]
    c: Annotated[int, Size("input channels")]
    h: Annotated[int, Size("input height", "pixels")]
    w: Annotated[int, Size("input width", "pixels", follows="h")] = FOLLOWS
    k: Annotated[int, Size("output channels")]
    r: Annotated[int, Size("filter height", **STEP)]
    s: Annotated[int, Size("filter width", follows="r", **STEP)] = FOLLOWS
    pad_h: Annotated[int, Size("zeros above, and as many below", "pixels", **PADDING)] = 0
    pad_w: Annotated[int, Size("zeros left, and as many right", "pixels", follows="pad_h", **PADDING)] = FOLLOWS
    stride_h: Annotated[int, Size("vertical step of the filter", **STEP)] = 1
    stride_w: Annotated[int, Size("horizontal step of the filter", follows="stride_h", **STEP)] = FOLLOWS
    dilation_h: Annotated[int, Size(f"vertical {_TAPS}", **STEP)] = 1
    dilation_w: Annotated[int, Size(f"horizontal {_TAPS}", follows="dilation_h", **STEP)] = FOLLOWS
    groups: Annotated[int, Size("groups of channels, each convolved apart", per_doubling=0.5)] = 1
    dtype: str = "fp32"
    math: str = "fma"
    layout: str = "NCHW"
    direction: str = "fwd"

    def __post_init__(self) -> None:
        problems.fill_followers(self)
        for size in declared_sizes(Conv):
            value = checked_int("conv", size.name, getattr(self, size.name), size.minimum, MAX_INT32)
            object.__setattr__(self, size.name, value)
        if self.dtype not in problems.DTYPES and str(self.dtype) in problems.ELEMENTS:
            raise refusal("product_type", dtype=self.dtype, dtypes=", ".join(problems.DTYPES))
        for name, choices in SETTINGS.items():
            check_choice(name, getattr(self, name), choices)
        if self.c % self.groups or self.k % self.groups:
            raise refusal("groups", groups=self.groups, c=self.c, k=self.k)
        for axis, size, filter_size, pad, dilation in (
            ("height", self.h, self.r, self.pad_h, self.dilation_h),
            ("width", self.w, self.s, self.pad_w, self.dilation_w),
        ):
            if not formulas.fits(size, filter_size, pad, dilation):
                raise refusal("filter", axis=axis, extent=dilation * (filter_size - 1) + 1, padded=size + 2 * pad)

    out_h = property(formulas.out_h)
    out_w = property(formulas.out_w)
    flops = property(formulas.flops)
    dram_bytes = tensor_bytes = property(formulas.tensor_bytes)

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return problems.DTYPES[self.dtype]

    @property
    def is_bwd_data(self) -> bool:
        """True for the input's gradient."""
        return self.direction == "bwd_data"

    @property
    def is_bwd_filter(self) -> bool:
        """True for the filter's gradient."""
        return self.direction == "bwd_filter"

    @property
    def is_nhwc(self) -> bool:
        """True if the channels are innermost."""
        return self.layout == "NHWC"

    @property
    def uses_tensor_cores(self) -> bool:
        """True if the math type allows tensor cores (fp32 data: only TF32, under ``default``)."""
        return problems.may_use_tensor_cores(self.dtype, self.math)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The 14 sizes in the order of `SIZE_COLUMNS`."""
        return _SIZES(self)

    def with_batch(self, n: int) -> "Conv":
        """Return the same shape at another batch size."""
        return replace(self, n=n)

    @property
    def samples(self) -> int:
        """Number of images."""
        return self.n

    @property
    def weights(self) -> int:
        """Elements of the filter."""
        return self.k * (self.c // self.groups) * self.r * self.s

    @property
    def multiply_adds(self) -> int:
        """Half of `flops`."""
        return self.flops // 2

    @property
    def is_gradient(self) -> bool:
        """True for both backward directions."""
        return self.direction != "fwd"

    def at_batch(self, old: int, new: int) -> "Conv | None":
        """Return the convolution with its batch multiplied by ``new / old``; None if its batch is no multiple of
        ``old``."""
        return None if self.n % old else self.with_batch(self.n // old * new)

    def gradients(self, of: str) -> problems.Gradients:
        """Return the convolution in the direction of the filter's or the input's gradient.

        The input's gradient of a transposed convolution (its problem is ``bwd_data``) is the forward pass.
        """
        input_direction = "fwd" if self.is_bwd_data else "bwd_data"
        direction = input_direction if of == problems.INPUT else "bwd_filter"
        return ((direction, replace(self, direction=direction)),)

    def seer_class(self, gpu: Gpu, mechanism: str = "direct") -> str:
        """Return SEER's class of a mechanism's kernel (see `roofline.seer_class`).

        The class depends on the waves of the middle tile, the FLOPs and the bytes.
        """
        terms = MECHANISM_TERMS[mechanism](self, mechanism_b_max(gpu, mechanism))
        _, middle, _ = terms.launches
        peak = roofline.peak_tflops(gpu, self.dtype, self.uses_tensor_cores)
        return roofline.seer_class(middle.waves, terms.arithmetic_flops, terms.dram_bytes, peak, gpu.dram_gbs)

    def to_dict(self) -> dict[str, int | str]:
        """Return field name → value."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def __str__(self) -> str:
        """Return the canonical text, as in ``n32c256h14w14k256r3s3p1u1``; sizes that have their defaults are left
        out."""
        is_printed = {"q": self.pad_w != self.pad_h, "v": self.stride_w != self.stride_h, "g": self.groups != 1}
        is_printed |= {"l": self.dilation_h != 1 or self.dilation_w != 1, "j": self.dilation_w != self.dilation_h}
        pairs = zip(LETTERS, self.sizes, strict=True)
        return "".join(f"{letter}{size}" for letter, size in pairs if is_printed.get(letter, True))


_DRIVER: dict[str, Any] = problems.TABLE["driver"]
DRIVER_FLAGS: dict[str, str] = {f"-{short}": name for name, (short, _, _) in _DRIVER["sizes"].items()}
"""Flag, named as in MIOpenDriver → field of `Conv`."""
_LONG_FLAGS = {f"--{long}": name for name, (_, long, _) in _DRIVER["sizes"].items()}
_FURTHER_FLAGS = {flag: long for long, short in _DRIVER["flags"].items() for flag in (f"-{short}", f"--{long}")}
_DRIVER_LINE = re.compile(r"MIOpenDriver(?:\.exe)?[\"']?(?:\s|\Z)|\A(?:\S+\s+)?(?=conv\w*\s+-)", re.ASCII)
_SHELL = re.compile(r"\s[|&;>]|\s\d>")
"""The rest of a line that a shell reads, such as ``2>&1 | tee log``."""
REQUIRED = ("n", "c", "h", "k", "r")
EXAMPLE = "n32c256h14w14k256r3s3p1u1"


def parse(text: str, **settings: str) -> Conv:
    """Return the `Conv` that a text describes; ``settings`` are dtype, math, layout and direction.

    Defaults: w=h, s=r, p=0, q=p, u=1, v=u, l=1, j=l, g=1. A text that begins with ``-`` is read as flags. A line of
    MIOpenDriver has that program's defaults, and its dtype, direction and layout override ``settings``. Raises
    `InputError` that names the wrong part.
    """
    text = text.strip()
    if is_driver_line(text):
        return _of_driver_line(text, settings)
    if text.startswith("-"):
        return parse_flags(text.split(), **settings)
    rest = re.sub(r"\A([a-z][0-9]+)*", "", text)
    if rest or not text:
        raise InputError(f"problem {text!r} is not readable at {rest!r}; it looks like {EXAMPLE}")
    return _build(re.findall(r"([a-z])([0-9]+)", text), text, LETTERS, settings)


def parse_flags(words: Sequence[str], **settings: str) -> Conv:
    """Return the `Conv` of a list of flags and values, as in ``["-n", "32", "--in_channels", "256", …]``."""
    pairs, stated = _flag_pairs(words)
    return _build(pairs, " ".join(words), DRIVER_FLAGS | _LONG_FLAGS, settings | stated)


def is_driver_line(text: str) -> bool:
    """Return True if a text has the name of MIOpenDriver, or begins with its word for convolutions and flags.

    A prompt, variables or the words of a log may precede the name.
    """
    return _DRIVER_LINE.search(text) is not None


def _of_driver_line(text: str, settings: dict[str, str]) -> Conv:
    """Return the `Conv` of a line of MIOpenDriver. Raises `InputError` for a mode other than convolution."""
    mode, *words = _SHELL.split(_DRIVER_LINE.split(text.strip("'`\""), maxsplit=1)[1])[0].split() or [""]
    if mode not in _DRIVER["dtypes"]:
        operator = _DRIVER["operators"].get(re.sub(r"b?fp\d+\Z", "", mode))
        remedy = f"; write it as {operator}:…" if operator else ""
        raise InputError(f"{mode!r} is no convolution of MIOpenDriver; known: {', '.join(_DRIVER['dtypes'])}{remedy}")
    pairs, stated = _flag_pairs(words)
    names = DRIVER_FLAGS | _LONG_FLAGS
    present = {names.get(flag) for flag, _ in pairs}
    defaults = [(f"-{flag}", str(size)) for name, (flag, _, size) in _DRIVER["sizes"].items() if name not in present]
    return _build([*pairs, *defaults], text, names, settings | {"dtype": _DRIVER["dtypes"][mode]} | stated)


def _flag_pairs(words: Sequence[str]) -> tuple[list[tuple[str, str]], dict[str, str]]:
    """Return (flag of a size, digits) pairs and the settings (direction, layout) that flags of MIOpenDriver state.

    Raises `InputError` for a value that is no whole number, several directions, and a problem that has no `Conv`.
    """
    text = " ".join(words)
    parts = [part for word in words for part in (word.split("=", 1) if word.startswith("-") else [word])]
    if len(parts) % 2:
        raise InputError(f"problem {text!r} has a flag without a value; each flag takes one value")
    pairs: list[tuple[str, str]] = []
    stated: dict[str, str] = {}
    for flag, value in zip(parts[::2], parts[1::2], strict=True):
        long = _FURTHER_FLAGS.get(flag, "")
        name, content = ("layout", value) if long in _DRIVER["layouts"] else ("", value)
        only, meaning = _DRIVER["only"].get("spatial_dim" if name and "D" in value else long, (value, ""))
        if value != only:
            raise InputError(f"{flag} {value} in a problem: {meaning}")
        if long == "forw":
            bits = int(value) if re.fullmatch("[0-7]", value) else -1
            directions = [each for each, bit in _DRIVER["directions"].items() if bits == 0 or (bits > 0 and bits & bit)]
            if len(directions) != 1:
                reason = f"asks for {', '.join(directions)}" if directions else "is no direction"
                raise InputError(f"{flag} {value} {reason}; give -F 1 (fwd), 2 (bwd_data) or 4 (bwd_filter)")
            name, content = "direction", directions[0]
        if not long:
            if flag in DRIVER_FLAGS | _LONG_FLAGS and not re.fullmatch("[0-9]+", value):
                raise InputError(f"{flag} {value!r} in problem {text!r}: give a whole number")
            pairs.append((flag, value))
        elif name and stated.setdefault(name, content) != content:
            raise InputError(f"problem {text!r} states {name} as {stated[name]} and as {content}; one is read")
    return pairs, stated


def _build(pairs: list[tuple[str, str]], text: str, names: dict[str, str], settings: dict[str, Any]) -> Conv:
    """Return the `Conv` of (name, digits) pairs; ``names`` maps a name in the text to a field."""
    sizes: dict[str, int] = {}
    for key, value in pairs:
        if key not in names:
            raise InputError(f"{key!r} in problem {text!r} is unknown; known: {' '.join(names)}")
        if names[key] in sizes:
            raise InputError(f"{key!r} appears twice in problem {text!r}; give it once")
        if len(value) > problems.MAX_DIGITS:
            raise InputError(f"{key} has {len(value)} digits in a problem; sizes have at most {problems.MAX_DIGITS}")
        sizes[names[key]] = int(value)
    if missing := [key for key, field in names.items() if field in REQUIRED and field not in sizes and key[:2] != "--"]:
        raise InputError(f"problem {text!r} lacks {', '.join(missing)}; it looks like {EXAMPLE}")
    return Conv(**sizes, **settings)


_DECLARED = DECLARED["conv"]


def dimensions(p: Problem) -> tuple[Number, ...]:
    """Return the ``size_names`` of a problem (`families.toml` has all names of columns)."""
    return (*map(log2_for(p.n), (p.n, p.c, p.h, p.w, p.k, p.r, p.s)), *_STEPS(p), log2(p.groups))


def problem_features(p: Problem, m: Machine, base_us: Number) -> tuple[Number, ...]:
    """Return the ``term_names`` of a problem on a machine; ``base_us`` is its roofline time."""
    z = sized(p)
    log2 = log2_for(base_us)
    log_work = log2(z.flops)
    log_traffic = log2(z.tensor_bytes)
    sizes = map(log2, (z.c_per_group, z.k_per_group, z.out_h, z.out_w, z.gemm_m, z.gemm_n, z.gemm_k))
    work = (log_work, log_traffic, log_work - log_traffic, log2(base_us))
    on_machine = (log_traffic - log2(m.l2_bytes), log_work - log2(m.sms))
    padding = (_padding_share(z.gemm_n, 32), _padding_share(z.gemm_n, 128), _padding_share(z.gemm_k, 8))
    return (*sizes, *work, is_depthwise(z), *on_machine, *padding)


def algorithm_features(z: Sized, m: Machine, base_us: Number, code: int, terms: KernelTerms) -> tuple[Number, ...]:
    """Return the ``candidate_names`` for the terms of one mechanism."""
    work, traffic, operands, workspace, kernels, (small, middle, large) = terms
    own_us = roofline_us(work, traffic, m.peak_tflops, m.dram_gbs)
    log2 = log2_for(own_us)
    blocks, middle_waves, middle_last, middle_useful = middle
    _, small_waves, small_last, small_useful = small
    _, large_waves, large_last, large_useful = large
    # Used share of the slots in all waves: waves / ⌈waves⌉ · utilisation.
    small_use = small_waves / -(-small_waves // 1.0) * small_useful
    middle_use = middle_waves / -(-middle_waves // 1.0) * middle_useful
    large_use = large_waves / -(-large_waves // 1.0) * large_useful
    efficiency = maximum(maximum(small_use, middle_use), large_use)
    buffered = workspace + 1.0
    work_ratios = (work / z.flops, traffic / z.tensor_bytes)
    ratios = (*work_ratios, operands, buffered, kernels, own_us / base_us, buffered / m.l2_bytes, blocks)
    return (
        code,
        *map(log2, ratios),
        *(log2(small_waves), small_last, small_useful),
        *(log2(middle_waves), middle_last, middle_useful),
        *(log2(large_waves), large_last, large_useful),
        efficiency,
        log2(own_us / efficiency),
    )


def _padding_share(length: Number, step: int) -> Number:
    """Return the useful share of a length processed in steps: length / (⌈length/step⌉·step)."""
    return length / (ceil_div(length, step) * step)


class ConvFamily(Family[Problem]):
    """The family of convolutions: algorithms of cuDNN and MIOpen, each with its own arithmetic and traffic."""

    name = "conv"
    kinds: Mapping[str, type[Problem]] = {"conv": Conv}
    sizes = declared_sizes(Conv)
    settings = SETTINGS
    setting_defaults: Mapping[str, str] = {"direction": "fwd", "dtype": "fp32", "math": "fma", "layout": "NCHW"}
    batch = ("n",)
    strata = ("1x1s1", "1x1s2", "3x3s1", "grouped", "other")
    primary = "ungrouped"
    kernel_groups = ("ungrouped", "grouped", "depthwise")
    candidate_key = ("direction", "algorithm")
    problem_names = (*_DECLARED["size_names"], *_DECLARED["term_names"])
    candidate_names = (*_DECLARED["candidate_names"],)
    setting_columns = problems.FLAGS
    dimension_names = (*_DECLARED["size_names"], *problems.FLAGS, *MACHINE_NAMES)
    distance_units: Mapping[str, float] = _DECLARED["distance_units"]
    own_roofline = "log2_algorithm_roofline_ratio"
    scaled = (("n",), ("c",), ("k",), ("h", "w"))
    tensor_core_mechanism = "precomp_gemm"
    has_call_cost = False
    half_types_share_algorithms = False  # libraries choose different algorithms for bf16

    def read(self, kind: str, body: str, settings: Mapping[str, str]) -> Conv:
        """Return the convolution of a text; see `parse`."""
        return parse(body, **settings)

    def problem(self, sizes: Mapping[str, Number], setting: Mapping[str, str]) -> Problem:
        """Return a `Conv` of numbers, or `ConvColumns` of arrays."""
        settings: dict[str, Any] = {name: setting[name] for name in self.settings if name in setting}
        if any(isinstance(value, np.ndarray) for value in sizes.values()):
            return ConvColumns.of([sizes[name] for name in SIZE_COLUMNS], **settings)
        return Conv(**sizes, **settings)

    def work(self, problem: Problem) -> tuple[Number, Number]:
        """Return the FLOPs of the direct algorithm, and the bytes of the three tensors."""
        return formulas.flops(problem), formulas.tensor_bytes(problem)

    def setting_of(self, problem: Problem) -> tuple[str, ...]:
        """Return direction, dtype, math, layout."""
        return problem.direction, problem.dtype, problem.math, problem.layout

    def sizes_of(self, problem: Problem) -> tuple[Number, ...]:
        """Return the 14 sizes."""
        return problem.sizes

    def formula(self, setting: tuple[str, ...], gpu: Gpu) -> Formula:
        """Return the terms of every mechanism; B_max is computed once."""
        direction, dtype, math, layout = setting
        conv = Conv(n=1, c=1, h=1, k=1, r=1, dtype=dtype, math=math, layout=layout, direction=direction)
        m = machine(gpu, dtype, conv.uses_tensor_cores)
        constants = (conv.itemsize, conv.is_bwd_data, conv.is_bwd_filter, conv.is_nhwc, conv.uses_tensor_cores)
        slots = {mechanism: mechanism_b_max(gpu, mechanism) for mechanism in MECHANISM_CODE}

        def problem(p: Problem) -> ProblemTerms:
            z = sized(p)
            base_us = roofline_us(1.0 * z.flops, 1.0 * z.tensor_bytes, m.peak_tflops, m.dram_gbs)
            return ProblemTerms(dimensions(z) + problem_features(z, m, base_us), base_us, z)

        def candidate(terms: ProblemTerms, mechanism: str) -> tuple[tuple[Number, ...], Number]:
            kernel = MECHANISM_TERMS[mechanism](terms.problem, slots[mechanism])
            code = MECHANISM_CODE[mechanism]
            needed = workspace_bytes(terms.problem, mechanism, gpu.vendor, kernel.workspace_bytes)
            return algorithm_features(terms.problem, m, terms.roofline_us, code, kernel), needed

        return Formula((*map(float, (*constants, *machine_features(m))),), problem, candidate)

    def tensor_bytes(self, problem: Problem) -> Number:
        """Return the bytes of input, filter and output."""
        return formulas.tensor_bytes(problem)

    def stratum(self, problem: Problem) -> np.ndarray:
        """Return the stratum by filter and stride; groups come first, and dilated filters belong to ``other``."""
        p = problem
        ones = (p.r == 1) & (p.s == 1)
        threes = (p.r == 3) & (p.s == 3) & (p.dilation_h == 1) & (p.dilation_w == 1)
        stride_1 = (p.stride_h == 1) & (p.stride_w == 1)
        stride_2 = (p.stride_h == 2) & (p.stride_w == 2)
        conditions = [p.groups > 1, ones & stride_1, ones & stride_2, threes & stride_1]
        return np.select(conditions, ["grouped", "1x1s1", "1x1s2", "3x3s1"], "other")

    def kernel_group(self, problem: Problem) -> np.ndarray:
        """Return ungrouped, depthwise or grouped: each group has its own kernels."""
        p = problem
        return np.select([p.groups == 1, p.groups == p.c], ["ungrouped", "depthwise"], "grouped")

    def kernel_group_of(self, traits: tuple[int, ...]) -> str:
        """Return the kernel group from the sixth trait."""
        return self.kernel_groups[traits[5] - 1]

    def in_grouping(self, stratum: np.ndarray, grouping: str) -> np.ndarray:
        """Return True for members of a grouping; ``ungrouped`` is everything except ``grouped``."""
        return stratum != "grouped" if grouping == "ungrouped" else super().in_grouping(stratum, grouping)

    def candidates(self, library: str, setting: tuple[str, ...]) -> tuple[Candidate, ...]:
        """Return the library's algorithms in the direction; empty if only measurements list them (cudnn-graph)."""
        if library not in LIBRARIES:
            return ()
        return tuple(Candidate(a.name, a.deterministic, a.implemented) for a in algorithms(library, setting[0]))

    def mechanism(self, library: str, setting: tuple[str, ...], algorithm: str) -> str:
        """Return the algorithm's mechanism."""
        return mechanism_of(algorithm, library, setting[0])

    def default_math(self, dtype: str, gpu: Gpu | None = None) -> str:
        """Return the default math type: fp32 uses TF32 if the GPU has it (``torch.backends.cudnn.allow_tf32``).

        MIOpen's tables state fma for all convolutions.
        """
        if gpu is not None and gpu.vendor == "amd":
            return "fma"
        tf32 = dtype == "fp32" and gpu is not None and gpu.tf32_tflops
        return "default" if tf32 else super().default_math(dtype, gpu)

    def has_tensor_kernels(self, mechanism: str) -> bool:
        """Return True for mechanisms with tensor-core kernels.

        Source: NVIDIA, cuDNN Developer Guide, Tensor Core Operations: prerequisites of convolutions.
        """
        return mechanism in ("precomp_gemm", "winograd_nonfused")

    def traits(self, problem: Problem) -> tuple[Number, ...]:
        """Return eight properties of the sizes that decide support.

        - Height and width of the filter, and both strides.
        - 1 if the filter is dilated, else 0.
        - Groups: 1 for one group, 2 for several, 3 for depthwise.
        - 1 if the padding reaches the filter's size, else 0.
        - 1 if the padded input exceeds 256, else 0.
        """
        p = problem
        return (
            *_TRAITS(p),
            1 * ((p.dilation_h > 1) | (p.dilation_w > 1)),
            where(p.groups == 1, 1, where(p.groups == p.c, 3, 2)),
            1 * ((p.pad_h >= p.r) | (p.pad_w >= p.s)),
            1 * ((p.h + 2 * p.pad_h > 256) | (p.w + 2 * p.pad_w > 256)),
        )

    def refusal(
        self, library: str, setting: tuple[str, ...], algorithm: str, problem: Problem, gpu_name: str
    ) -> str | None:
        """Return the units that the GPU lacks, or the first documented rule that the problem breaks, or None."""
        if library == "cudnn" and gpu_name and (lacks := missing_units(gpu(gpu_name), *setting[1:3])):
            return lacks
        try:
            return unsupported_reason(algorithm, problem, library=library, direction=setting[0], gpu_name=gpu_name)
        except InputError:  # an unregistered algorithm has no rules
            return None

    def misfits(self, sizes: Mapping[str, np.ndarray], library: np.ndarray) -> list[tuple[str, np.ndarray, str]]:
        """Return the rules for groups and filters: groups divide the channels, and the filter fits the padded input.

        MIOpen's tables contain times of larger filters, so that rule does not apply to them.
        """
        p = ConvColumns.of([sizes[name] for name in SIZE_COLUMNS])
        filter_must_fit = library != "miopen"
        too_large = "the filter (dilation included) exceeds the padded input"
        return [
            ("groups", (p.c % p.groups != 0) | (p.k % p.groups != 0), "it must divide c and k"),
            ("r", filter_must_fit & ~fits(p.h, p.r, p.pad_h, p.dilation_h), too_large),
            ("s", filter_must_fit & ~fits(p.w, p.s, p.pad_w, p.dilation_w), too_large),
        ]


CONV = ConvFamily()
