"""Paired comparisons of variants, the ablation's groups, and what the list leaves out."""

import numpy as np
import pytest
from experiments.objectives import VARIANTS, sampled, with_unlisted
from experiments.variants import median_change, predict_variants, variant_verdicts
from surrogate.models.columns import DIMS, TERMS
from surrogate.models.single import AlwaysBestSingle

from experiments.ablation import GROUPS, WHOLE, variants, without
from experiments.effort import Effort
from experiments.held_out import candidate_rows
from experiments.sources import Sources
from surrogate.dataset.splits import folds, shape_names
from surrogate.models.boosted import WEIGHT_NAMES, BoostedTerms


def test_groups_cover_every_term_once() -> None:
    named = [name for names in GROUPS.values() for name in names]
    assert len(named) == len(set(named))
    assert set(named) | set(DIMS) == set(TERMS)


def test_a_variant_sees_all_columns_but_its_group() -> None:
    for names in GROUPS.values():
        columns = without(names).columns
        assert set(TERMS) - set(columns) == set(names)
        assert without(names).__mro__[1] is BoostedTerms
    assert next(iter(variants())) == WHOLE


def test_variants_of_the_objective_set_its_weights_alone() -> None:
    assert {key for settings in VARIANTS.values() for key in settings} <= set(WEIGHT_NAMES)


def test_median_change_by_hand() -> None:
    """Errors 10 % and 30 % everywhere: the change is 20 points whatever is drawn."""
    measured = np.array([1.0, 2.0, 4.0, 8.0])
    change, low, high = median_change(1.3 * measured, 1.1 * measured, measured, np.array([0, 0, 1, 2]))
    assert (change, low, high) == pytest.approx((0.2, 0.2, 0.2))


def test_the_first_variant_is_compared_with_itself(sources: Sources) -> None:
    data = sources.dataset("cudnn")
    rows = candidate_rows([data])
    rounds = [(f.train, f.test) for f in folds("shape", rows.frame, rows.frame.iloc[:0], 3, 0)]
    few = {"rounds": 15, "learning_rate": 0.3, "nthread": 1}
    compared = {"trees": BoostedTerms(**few), "again": BoostedTerms(**few), "single": AlwaysBestSingle()}
    ticks: list[str] = []
    found = variant_verdicts(predict_variants(rows, data.candidates, rounds, compared, 0, ticks.append))
    assert list(found["variant"]) == ["trees", "again", "single"]
    assert len(ticks) == 9
    changes = found.set_index("variant").filter(like="change")
    assert (changes.loc[["trees", "again"]] == 0).all(axis=None)
    assert changes.loc["single", "error_change_pct"] != 0


def test_a_sample_keeps_whole_shapes(sources: Sources) -> None:
    data = sources.dataset("mi210")
    part = sampled(data, Effort(), 3)
    assert len(set(shape_names(part.frame))) == 3
    assert len(sampled(data, Effort(quick=True, quick_shapes=2), 3).frame) < len(part.frame)


def test_what_the_list_leaves_out_has_no_time(sources: Sources) -> None:
    data = sources.dataset("mi210")
    gone = data.with_frame(data.frame[~((data.frame["algorithm"] == "GEMM") & (data.frame["n"] == 1))])
    rows, listed = with_unlisted(candidate_rows([gone]), gone)
    assert listed.sum() == len(candidate_rows([gone]))
    assert (~listed).sum() > 0
    assert set(rows.frame.loc[~listed, "algorithm"]) == {"GEMM"}
    assert set(rows.frame.loc[~listed, "n"]) == {1}
    assert not rows.ok[~listed].any()
