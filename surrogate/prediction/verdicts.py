"""Whether an algorithm will run on a problem, and why not, one problem at a time: `Support` without a table."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from surrogate.features.errors import InputError
from surrogate.features.problem import ConvColumns, Problem
from surrogate.features.support import unsupported_reason
from surrogate.prediction.setting import Candidate, Setting

MAX_TRAITS = 65_536
"""Distinct traits whose verdicts are kept."""
Traits = tuple[int, int, int, int, bool, str, bool, bool]


class KnownSupport(Protocol):
    """The two tables of `surrogate.models.Support`: signature → share of rows that ran."""

    @property
    def exact(self) -> Mapping[str, float]:
        """With the GPU and the library version."""
        ...

    @property
    def general(self) -> Mapping[str, float]:
        """Without."""
        ...


def traits(conv: Problem) -> Traits:
    """What of a problem decides support, in the order of the signatures of `surrogate.models.support`."""
    groups = "no" if conv.groups == 1 else "depthwise" if conv.groups == conv.c else "yes"
    return (
        conv.r, conv.s, conv.stride_h, conv.stride_w,
        conv.dilation_h > 1 or conv.dilation_w > 1, groups,
        conv.pad_h >= conv.r or conv.pad_w >= conv.s,
        conv.h + 2 * conv.pad_h > 256 or conv.w + 2 * conv.pad_w > 256,
    )  # fmt: skip


def _trait_columns(p: ConvColumns) -> tuple[np.ndarray, ...]:
    """`traits` of every problem, column by column."""
    groups: Any = np.select([p.groups == 1, p.groups == p.c], ["no", "depthwise"], "yes")
    return (
        p.r, p.s, p.stride_h, p.stride_w,
        (p.dilation_h > 1) | (p.dilation_w > 1), groups,
        (p.pad_h >= p.r) | (p.pad_w >= p.s),
        (p.h + 2 * p.pad_h > 256) | (p.w + 2 * p.pad_w > 256),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Verdicts:
    """The reasons, per candidate, why a problem is refused; None where it is expected to run.

    Every rule asks for nothing but the traits, so that verdicts are kept by them.
    """

    setting: Setting
    candidates: tuple[Candidate, ...]
    support: KnownSupport
    rules_gpu: str
    _kept: dict[Traits, tuple[str | None, ...]] = field(default_factory=dict, repr=False, compare=False)

    def of(self, conv: Problem) -> tuple[str | None, ...]:
        """Reason or None for every candidate, for one problem."""
        key = traits(conv)
        return self._kept.get(key) or self._decide(key, conv)

    def allowed(self, p: ConvColumns) -> np.ndarray:
        """(problems, candidates) True where the library is expected to run it."""
        keys = list(zip(*(column.tolist() for column in _trait_columns(p)), strict=True))
        known: dict[Traits, tuple[bool, ...]] = {}
        for place, key in enumerate(keys):
            if key not in known:
                reasons = self._kept.get(key) or self._decide(key, p.take(np.array([place])))
                known[key] = tuple(reason is None for reason in reasons)
        return np.array([known[key] for key in keys], dtype=bool).reshape(len(keys), len(self.candidates))

    def _decide(self, key: Traits, p: Problem) -> tuple[str | None, ...]:
        names = dict.fromkeys(candidate.algorithm for candidate in self.candidates)
        reasons = {name: self._reason(name, p, key) for name in names}
        found = tuple(reasons[candidate.algorithm] for candidate in self.candidates)
        if len(self._kept) < MAX_TRAITS:
            self._kept[key] = found
        return found

    def _reason(self, name: str, p: Problem, key: Traits) -> str | None:
        s = self.setting
        general = "|".join(map(str, (s.library, s.direction, s.dtype, s.math, s.layout, name, *key)))
        exact = f"{general}|{s.gpu}|{s.library_version}"
        share, where = self.support.exact.get(exact), f" by {s.library} {s.library_version} on {s.gpu}"
        overall = self.support.general.get(general)
        if share is None:
            share, where = overall, ""
        rule = self._rule(name, p)
        if share is None:
            return rule
        if share >= 0.5:
            return None
        if overall is not None and overall >= 0.5:
            return f"{s.library} {s.library_version} refused problems of this kind on {s.gpu}, where others ran it"
        return rule or f"problems of this kind never ran in the training data (refused{where})"

    def _rule(self, name: str, p: Problem) -> str | None:
        s = self.setting
        try:
            return unsupported_reason(
                name, p, library=s.library, direction=s.direction, gpu_name=self.rules_gpu
            )
        except InputError:  # an algorithm that the registry lacks has no rules
            return None
