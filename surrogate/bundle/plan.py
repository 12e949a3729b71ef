"""Which problems to measure on a new GPU, so that a calibration learns the most from them.

Greedy choice: each time the problem whose measurement takes most off the variance of the correction, summed over all
problems (A-optimal design of a Gaussian process, after Seo et al. 2000, "Gaussian process regression: active data
selection and test point rejection"). It needs no time to have been measured.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from surrogate.bundle.bundle import Bundle
from surrogate.collect.plan import PlannedProblem
from surrogate.dataset.files import Progress, write_text
from surrogate.dataset.rows import Rows, rows_of
from surrogate.features.errors import InputError
from surrogate.features.families import AnyProblem, family_of
from surrogate.features.gpu import gpu as gpu_named
from surrogate.features.text import newest
from surrogate.models.calibrated import PRIORS
from surrogate.models.correction import Inputs, correction_columns, covariance, inputs_of

POOL = 400
"""Problems that are compared at least; a longer list is thinned to this, or to twice what is wanted."""


def plan_calibration(
    bundle: Bundle,
    gpu: str,
    count: int,
    problems: Sequence[PlannedProblem] | None = None,
    *,
    library: str | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> list[PlannedProblem]:
    """The ``count`` problems to measure on ``gpu``, most telling first; a prefix is a plan of its own.

    ``problems`` to choose from; by default a sample of the measuring campaign's mixture. Raises `InputError` for an
    unknown GPU, fewer problems than ``count``, or a library that the bundle does not know.
    """
    if count < 1:
        raise InputError(f"a plan of {count} problems is empty; give at least 1")
    pool = _pool(problems, count, seed)
    if len(pool) < count:
        raise InputError(f"{len(pool)} problems to choose {count} from; give more, or plan fewer")
    rows, problem = candidates_of(bundle, gpu, [planned.conv for planned in pool], library)
    predicted_us = bundle.part(rows.family).model.predict(rows)
    return [pool[index] for index in choose_problems(rows, problem, predicted_us, count, progress=progress)]


def _pool(problems: Sequence[PlannedProblem] | None, count: int, seed: int) -> list[PlannedProblem]:
    """The problems to choose from, without repetition, thinned by a seeded hash."""
    from surrogate.collect.plan import GPU_CAPS, in_hash_order, unique
    from surrogate.collect.plan_source import mixture

    most = max(POOL, 2 * count)
    if problems is None:
        return unique(mixture(most, seed, GPU_CAPS)[0])
    return in_hash_order(unique(problems), seed)[:most]


def candidates_of(
    bundle: Bundle, gpu: str, problems: Sequence[AnyProblem], library: str | None = None
) -> tuple[Rows, np.ndarray]:
    """Rows of every candidate that the bundle expects to run, and each row's place in ``problems`` (rows,).

    All problems are of one family; the newest version of ``library`` (None: the bundle's first) that the bundle was
    fitted on. Raises `InputError` where the bundle does not know the library, or nothing is expected to run.
    """
    family = family_of(problems[0])
    part = bundle.part(family)
    library = library or min(part.domain.libraries)
    versions = part.domain.versions_of(library)
    if not versions:
        raise InputError(f"library {library!r} is not the bundle's; give one of {', '.join(part.domain.libraries)}")
    device = bundle.devices[gpu].name if gpu in bundle.devices else gpu_named(gpu).name
    fixed = {"gpu": device, "library": library, "library_version": newest(versions)}
    algorithms = sorted({key.algorithm for key in part.domain.settings if key.library == library})
    records = [
        {
            **fixed,
            "family": family.name,
            **dict(zip(family.setting_names, family.setting_of(problem), strict=True)),
            **dict(zip(family.size_names, family.sizes_of(problem), strict=True)),
            "algorithm": algorithm,
            "place": index,
        }
        for index, problem in enumerate(problems)
        for algorithm in algorithms
        if not (offered := family.candidates(library, family.setting_of(problem)))
        or any(candidate.algorithm == algorithm for candidate in offered)
    ]
    if not records:
        raise InputError(f"the bundle knows no {library} algorithm for these problems")
    rows = rows_of(pd.DataFrame(records), family, bundle.devices)
    rows = rows.take(part.support.supported(rows))
    if not len(rows):
        raise InputError("no algorithm is expected to run on any of these problems; give others")
    return rows, rows.frame["place"].to_numpy()


def choose_problems(
    rows: Rows, problem: np.ndarray, predicted_us: np.ndarray, count: int, progress: Progress | None = None
) -> list[int]:
    """``count`` distinct codes of ``problem`` (rows,), in the order in which they are worth measuring."""
    index = np.flatnonzero(np.isfinite(predicted_us))
    usable = rows.take(index)
    codes = {str(name): code for code, name in enumerate(np.unique(usable.candidate))}
    x = usable.columns(correction_columns(rows.family))
    units = tuple(rows.family.distance_units.values())
    inputs = inputs_of(x, usable.candidate, predicted_us[index], units=units, codes=codes)
    return greedy(inputs, problem[index], count, progress)


def greedy(inputs: Inputs, problem: np.ndarray, count: int, progress: Progress | None = None) -> list[int]:
    """The choice itself, under the priors' median hyperparameters."""
    scales = {name: median for name, (median, _) in PRIORS.items()}
    variance = covariance(scales, inputs, inputs)
    noise = scales["noise"] ** 2
    codes, code = np.unique(problem, return_inverse=True)
    left = np.ones(len(codes), dtype=bool)
    chosen: list[int] = []
    for done in range(min(count, len(codes))):
        # 1. What measuring each row would take off the summed variance, added up over the rows of a problem.
        gain = (variance**2).sum(axis=0) / (np.diag(variance) + noise)
        of_problem = np.bincount(code, weights=gain, minlength=len(codes))
        best = int(np.argmax(np.where(left, of_problem, -np.inf)))
        left[best] = False
        chosen.append(int(codes[best]))
        # 2. The covariance that is left once all rows of the chosen problem are measured.
        block = np.flatnonzero(code == best)
        shared = variance[:, block]
        inner = variance[np.ix_(block, block)] + noise * np.eye(len(block))
        variance = variance - shared @ np.linalg.solve(inner, shared.T)
        if progress:
            progress(done + 1, count, "problems chosen")
    return chosen


def write_plan(problems: Sequence[PlannedProblem], path: str | Path) -> None:
    """A plan file that ``seer collect --plan`` reads: JSON lines, one problem with its settings each."""
    lines = [
        json.dumps(
            {
                "problem": str(p.conv),
                "dtype": p.conv.dtype,
                "math": p.conv.math,
                "layout": p.conv.layout,
                "direction": p.conv.direction,
                **({"networks": ",".join(p.networks)} if p.networks else {}),
            }
        )
        for p in problems
    ]
    write_text(path, "\n".join([*lines, ""]))
