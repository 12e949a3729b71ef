"""Which problems to measure on a new GPU, so that a calibration learns the most from them.

Greedy choice: each time the problem whose measurement takes most off the variance of the correction, summed over all
problems (A-optimal design of a Gaussian process, after Seo et al. 2000, "Gaussian process regression: active data
selection and test point rejection"). It needs no time to have been measured.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from surrogate.bundle.bundle import Bundle
from surrogate.collect.plan import PlannedProblem
from surrogate.dataset.atomic import write_text
from surrogate.features.text import version_number
from surrogate.dataset.rows import Rows, rows_of
from surrogate.features.algorithms import algorithms
from surrogate.features.conv import Conv
from surrogate.features.errors import InputError
from surrogate.features.gpu import gpu as gpu_named
from surrogate.features.problem import SIZE_COLUMNS
from surrogate.models.columns import candidate_names, vocabulary
from surrogate.models.correction import inputs_of
from surrogate.models.residual import PRIORS, Inputs, kernel

POOL = 400
"""Problems that are compared at least; a longer list is thinned to this, or to twice what is wanted."""
Progress = Callable[[int, int, str], None]


def plan_calibration(
    bundle: Bundle,
    gpu: str,
    count: int,
    problems: Sequence[PlannedProblem] | None = None,
    *,
    library: str = "cudnn",
    seed: int = 0,
    progress: Progress | None = None,
) -> list[PlannedProblem]:
    """The ``count`` problems to measure on ``gpu``, most telling first; a prefix is a plan of its own.

    ``problems`` to choose from; by default a sample of the measuring campaign's mixture. Raises `InputError` for an
    unknown GPU, fewer problems than ``count``, or a library that the bundle does not know.
    """
    if count < 1:
        raise InputError(f"a plan of {count} problems is empty; give at least 1")
    given = _pool(problems, count, seed)
    if len(given) < count:
        raise InputError(f"{len(given)} problems to choose {count} from; give more, or plan fewer")
    rows, problem = candidates_of(bundle, gpu, [one.conv for one in given], library)
    chosen = choose_problems(rows, problem, bundle.model.predict_us(rows), count, progress)
    return [given[place] for place in chosen]


def _pool(problems: Sequence[PlannedProblem] | None, count: int, seed: int) -> list[PlannedProblem]:
    """The problems to choose from, without repetition, thinned by a seeded hash."""
    from surrogate.collect.caps import GPU_CAPS
    from surrogate.collect.plan import in_hash_order, unique
    from surrogate.collect.sample import mixture

    most = max(POOL, 2 * count)
    if problems is None:
        return unique(mixture(most, seed, GPU_CAPS)[0])
    return in_hash_order(unique(problems), seed)[:most]


def candidates_of(
    bundle: Bundle, gpu: str, convs: Sequence[Conv], library: str = "cudnn"
) -> tuple[Rows, np.ndarray]:
    """Rows of every algorithm that the bundle expects to run, and each row's place in ``convs`` (rows,).

    The library's newest version that the bundle was fitted on. Raises `InputError` where the bundle does not know the
    library, or nothing is expected to run.
    """
    known = {(s.split("|")[1], s.split("|")[-1]) for s in bundle.domain.settings}
    versions = [v.partition("|")[2] for v in bundle.domain.versions if v.partition("|")[0] == library]
    if not versions:
        raise InputError(
            f"library {library!r} is not the bundle's; it knows {', '.join(sorted({a for a, _ in known}))}"
        )
    device = bundle.devices[gpu].name if gpu in bundle.devices else gpu_named(gpu).name
    setting = {"gpu": device, "library": library, "library_version": max(versions, key=version_number)}
    records = [
        {**setting, "direction": conv.direction, "dtype": conv.dtype, "math": conv.math, "layout": conv.layout,
         **dict(zip(SIZE_COLUMNS, conv.sizes, strict=True)), "algorithm": one.name, "place": place}
        for place, conv in enumerate(convs)
        for one in algorithms(library, conv.direction)
        if (library, one.name) in known
    ]  # fmt: skip
    if not records:
        raise InputError(f"the bundle knows no {library} algorithm in the direction of these problems")
    rows = rows_of(pd.DataFrame(records), bundle.devices)
    rows = rows.take(bundle.support.supported(rows))
    if not len(rows):
        raise InputError("no algorithm is expected to run on any of these problems; give others")
    return rows, rows.frame["place"].to_numpy()


def choose_problems(
    rows: Rows, problem: np.ndarray, predicted_us: np.ndarray, count: int, progress: Progress | None = None
) -> list[int]:
    """``count`` distinct codes of ``problem`` (rows,), in the order in which they are worth measuring."""
    names = candidate_names(rows)
    usable = np.isfinite(predicted_us)
    inputs = inputs_of(rows.features, names, np.where(usable, predicted_us, 1.0), vocabulary(names))
    index = np.flatnonzero(usable)
    return greedy(inputs.take(index), problem[index], count, progress)


def greedy(inputs: Inputs, problem: np.ndarray, count: int, progress: Progress | None = None) -> list[int]:
    """The choice itself, under the priors' median hyperparameters."""
    scales = {name: median for name, (median, _) in PRIORS.items()}
    covariance = kernel(scales, inputs, inputs)
    noise = scales["noise"] ** 2
    codes, place = np.unique(problem, return_inverse=True)
    left = np.ones(len(codes), dtype=bool)
    chosen: list[int] = []
    for done in range(min(count, len(codes))):
        gain = (covariance**2).sum(axis=0) / (np.diag(covariance) + noise)
        of_problem = np.bincount(place, weights=gain, minlength=len(codes))
        best = int(np.argmax(np.where(left, of_problem, -np.inf)))
        left[best] = False
        chosen.append(int(codes[best]))
        block = np.flatnonzero(place == best)
        told = covariance[:, block]
        inner = covariance[np.ix_(block, block)] + noise * np.eye(len(block))
        covariance = covariance - told @ np.linalg.solve(inner, told.T)
        if progress:
            progress(done + 1, count, "problems chosen")
    return chosen


def write_plan(problems: Sequence[PlannedProblem], path: str | Path) -> None:
    """A plan file that ``seer collect --plan`` reads: JSON lines, one problem with its settings each."""
    lines = [
        json.dumps(
            {"problem": str(p.conv), "dtype": p.conv.dtype, "math": p.conv.math, "layout": p.conv.layout,
             "direction": p.conv.direction, **({"networks": ",".join(p.networks)} if p.networks else {})}
        )
        for p in problems
    ]  # fmt: skip
    write_text(path, "\n".join([*lines, ""]))
