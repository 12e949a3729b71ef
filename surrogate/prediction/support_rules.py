"""Decide which candidates of a setting run a problem, from measured support and the library's documentation."""

from dataclasses import dataclass, field

import numpy as np

from surrogate.features import InputError
from surrogate.features.caches import BoundedCache
from surrogate.features.families import AnyProblem
from surrogate.models.support import Release, Signature, Support
from surrogate.prediction.sources.source import LibraryCandidate, QuerySetting

Reasons = tuple[str | None, ...]
"""Reason why each candidate is refused; None if it is expected to run."""
MAX_REASONS = 65_536
"""Maximum number of reasons that the rules of a setting keep."""


@dataclass(frozen=True, slots=True)
class SupportRules:
    """The refusals of a setting's candidates, cached by the traits of a problem, which decide them."""

    setting: QuerySetting
    candidates: tuple[LibraryCandidate, ...]
    support: Support
    _reasons: BoundedCache[tuple[int, ...], Reasons] = field(
        default_factory=lambda: BoundedCache(MAX_REASONS, len), repr=False, compare=False
    )

    def of(self, problem: AnyProblem) -> Reasons:
        """Return, for every candidate, the reason why it is refused for one problem, or None."""
        traits = self.setting.family.traits(problem)
        if (kept := self._reasons.get(traits)) is not None:
            return kept
        family, gpu, versions, values = self.setting
        release = {library: Release(gpu, version) for library, version in versions}
        numbers = tuple(map(int, traits))
        # Solvers of one algorithm are refused together; then each by the problems that it ran.
        signatures = [Signature(c.library, values, c.algorithm, numbers) for c in self.candidates]
        by_signature = {
            signature: self.support.refusal(family, signature, release[signature.library], problem)
            for signature in dict.fromkeys(signatures)
        }
        reasons = (
            by_signature[signature] or (self.support.solver_refusal(signature, c.solver) if c.solver else None)
            for signature, c in zip(signatures, self.candidates, strict=True)
        )
        return self._reasons.put(traits, tuple(reasons))

    def allowed(self, sizes: np.ndarray) -> np.ndarray:
        """Return whether the library is expected to run each candidate, (problems, candidates).

        ``sizes`` is (problems, sizes).
        """
        # 1. Problems with equal traits get one code (problems,). The first column is for families without traits.
        traits = self.setting.family.traits(self.setting.problem(sizes.T))
        columns = [np.broadcast_to(column, len(sizes)) for column in (0, *traits)]
        _, first, code = np.unique(np.column_stack(columns), axis=0, return_index=True, return_inverse=True)
        # 2. The first valid problem of a code decides for all. Libraries also time invalid problems (a filter larger
        #    than its input). If all problems of a code are invalid, no candidate is refused.
        no_reasons: Reasons = (None,) * len(self.candidates)
        reasons = [
            self._of_any(sizes[start : start + 1]) or self._of_any(sizes[code == i]) or no_reasons
            for i, start in enumerate(first)
        ]
        # 3. The decisions (codes, candidates), expanded to the problems.
        table = np.array([[reason is None for reason in row] for row in reasons], dtype=bool)
        return table.reshape(len(first), len(self.candidates))[code.ravel()]

    def _of_any(self, sizes: np.ndarray) -> Reasons | None:
        """Return the reasons of the first valid problem among the sizes, or None if there is no valid problem."""
        for row in sizes.tolist():
            try:
                return self.of(self.setting.problem(row))
            except InputError:
                continue
        return None
