"""The key of a MIOpen find-db line: one convolution problem."""

import re
from dataclasses import dataclass

from surrogate.features.conv import MAX_SIZE
from surrogate.features.problem import SIZE_COLUMNS

DIRECTIONS = {"F": "fwd", "B": "bwd_data", "W": "bwd_filter"}
DTYPES = {"FP32": "fp32", "FP16": "fp16", "BF16": "bf16", "FP64": "fp64", "INT8": "int8"}
_KEY = re.compile(
    r"(\d{1,12})-(\d{1,12})-(\d{1,12})-(\d{1,12})x(\d{1,12})-(\d{1,12})-(\d{1,12})-(\d{1,12})-(\d{1,12})-(\d{1,12})x(\d{1,12})-(\d{1,12})x(\d{1,12})-(\d{1,12})x(\d{1,12})-(\d{1,12})-"
    r"([A-Z]+\w*(?:-[A-Z]+\w*-[A-Z]+\w*)?)-([A-Z]+\d\w*)-([FBW])((?:_[a-z]+\w*?)*)",
    re.ASCII,
)
_VOLUME = re.compile(r"(\d+-){4}\d+x\d+x\d+-.*NC?DHWC?-.*", re.ASCII)
_GROUPS = re.compile(r"_g(\d{1,12})")


@dataclass(frozen=True, slots=True)
class Key:
    """A 2-D problem by its *forward* sizes: n c h w k r s, out_h out_w, pads, strides, dilations, groups,
    bias.
    """

    sizes: tuple[int, ...]
    out_h: int
    out_w: int
    bias: int
    layout: str
    dtype: str
    direction: str
    casts: str

    @property
    def wrong(self) -> str:
        """What no convolution can be: a size out of range, or groups that do not divide the channels; else
        nothing.

        A filter larger than the padded input is let be: MIOpen takes, and times, such problems.
        """
        for name, size in zip(SIZE_COLUMNS, self.sizes, strict=True):
            least = 0 if name.startswith("pad") else 1
            if not least <= size <= MAX_SIZE:
                return f"{name} is {size}; it must be between {least} and {MAX_SIZE}"
        if max(self.out_h, self.out_w, self.bias) > MAX_SIZE:
            return f"an output of {self.out_h} × {self.out_w}; sizes go up to {MAX_SIZE}"
        c, k, groups = self.sizes[1], self.sizes[4], self.sizes[-1]
        if c % groups or k % groups:
            return f"groups {groups} does not divide c {c} and k {k}; both must be multiples of groups"
        return ""


def parse_key(text: str) -> Key | None:
    """The key, or None where ``text`` is no key of a 2-D problem.

    The line names the operation's own input first: for backward data and backward filter that is the forward
    *output* (k, out h, out w), and the forward input stands where the output does otherwise. Source: MIOpen's
    ProblemDescription::Serialize. A layout that input, filter and output share is named once.
    """
    match = _KEY.fullmatch(text)
    if not match:
        return None
    numbers = [int(value) for value in match.groups()[:16]]
    c, h, w, r, s, k, out_h, out_w, n = numbers[:9]
    if match[19] != "F":
        c, h, w, k, out_h, out_w = k, out_h, out_w, c, h, w
    layouts = match[17].split("-")
    groups = _GROUPS.search(match[20])
    return Key(
        (n, c, h, w, k, r, s, *numbers[9:15], int(groups[1]) if groups else 1),
        out_h,
        out_w,
        numbers[15],
        layouts[0] if len(set(layouts)) == 1 else match[17],
        DTYPES.get(match[18], match[18].lower()),
        DIRECTIONS[match[19]],
        _GROUPS.sub("", match[20]),
    )


def is_volume(text: str) -> bool:
    """True for the key of a 3-D problem."""
    return _VOLUME.fullmatch(text) is not None
