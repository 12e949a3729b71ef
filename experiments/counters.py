"""Do kernels execute the FLOPs that the terms count, and how far do public counters carry SEER's fits?

The counters were recorded on a V100 (rai-project/dlperf). They cover the fp32 kernels of the layers of 30 networks at
batch 1, and the kernels of ResNet-50's convolutions in fp16. Neither set names both the algorithm and fp32 kernels, has
DRAM counters, or has usable times.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.experiment import Effort, ExperimentResult, program
from experiments.held_out import Round, candidate_rows, predict_rounds, rounds_by
from experiments.sources import Sources, own_settings
from experiments.verdicts import error_record
from surrogate import Dataset, gpu
from surrogate.dataset.problems import newest_version
from surrogate.dataset.rows import Rows
from surrogate.dataset.splits import fold_labels
from surrogate.features import terms as formulas
from surrogate.features.algorithms import MECHANISM_CODE
from surrogate.features.elementwise import ceil_div, round_up
from surrogate.features.families import CONV
from surrogate.features.problem import SIZE_COLUMNS, ConvColumns
from surrogate.features.roofline import mechanism_b_max
from surrogate.formats import FORMATS
from surrogate.models.seer import physics
from surrogate.models.seer.fits import FormFit
from surrogate.models.seer.time_only import mechanism_terms
from surrogate.report.charts import dots

DEVICE, ALGORITHM, MECHANISM = "Tesla V100-SXM2-16GB", "IMPLICIT_GEMM", "implicit_gemm"
MODELS_SHOWN = ("roofline", "seer-time-only", "boosted-terms")
FORMULA = "SEER's formula, fitted"
DEPTH_STEP = 8
"""The implicit GEMM kernel rounds the length of its sums up to a multiple of this."""
MIN_ROWS = 8
"""Minimum rows of a class for a time form of its own. Smaller classes use the under-utilised form over all rows."""
Record = dict[str, Any]
LAYER = ["network", "LayerName"]
FP32, FP16 = "layers, fp32", "ResNet-50, fp16"
TEXTS = own_settings(__file__)
TILE_STEP, IMAGE_STEP = 4, 16
"""Steps of a tile's side, and of the number of images, in these kernels."""
PADDED = "terms with the tile's padding"


def run(sources: Sources, effort: Effort) -> ExperimentResult:
    """Return the parts of the table: FLOPs, instructions per block, and times."""
    layers = layer_kernels(sources.path("layer_counts"))
    timed = pd.concat([sources.dataset(name).frame.query("n == 1") for name in ("cudnn", "partial")])
    counted, lost = matched(layers, timed)
    profile = FORMATS["cudnn-scope"].read(sorted(sources.path("kernel_counts").glob("*.json.gz"))).kernels
    assert profile is not None
    records = [
        *convolution_flops(counted, lost),
        *profile_flops(profile),
        *instruction_errors(counted, effort),
        *time_errors(counted, timed, effort),
    ]
    table = pd.DataFrame(records)
    table["n"] = table["n"].astype(int)
    padded = np.where(table["compared"] == "terms", "", ", padded")
    drawn = table.assign(kernel=table["kernels"] + padded)[table["part"] == "FLOPs"]
    xlabel, arms = "FLOPs of the terms over counted FLOPs", ("ratio_p5", "ratio_p95")
    figure = dots(drawn, "kernel", "source", "ratio_median", xlabel, arms=arms, log=True)
    return ExperimentResult(table, figure)


def layer_kernels(folder: Path) -> pd.DataFrame:
    """Return every counted kernel of every layer: the files' columns, ``network``, ``instructions``, ``main`` of its
    layer.

    Instructions are fp32 additions, multiplications and multiply-adds. Comparisons and similar ones are not counted.
    """
    files = sorted(folder.glob("*.csv"))
    frame = pd.concat([pd.read_csv(path).assign(network=path.stem) for path in files], ignore_index=True)
    largest = frame.groupby(LAYER)["flop_count_sp"].idxmax()
    counted = frame[["flops_sp_add", "flops_sp_mul", "flops_sp_fma"]].sum(axis=1)
    return frame.assign(instructions=counted, main=frame.index.isin(largest))


def matched(layers: pd.DataFrame, timed: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """Return the convolutions' main kernels with sizes, ``tile`` and ``blocks``, and why the others have no problem.

    A kernel scales each output once, so its multiplications are its outputs. The outputs and the layer's FLOPs limit
    the problems of the network that fit the kernel. A problem is accepted if it is the only one with a tile of implicit
    GEMM whose padding gives exactly the counted multiply-adds. ``tile`` is empty if several tiles do so.
    """
    problems = timed.assign(network=timed["networks"].fillna("").str.split("[;,] *")).explode("network")
    problems = problems[["network", *SIZE_COLUMNS]].drop_duplicates()
    p = _sizes(problems)
    m = formulas.gemm_m(p)
    problems = problems.assign(
        flops=formulas.flops(p), outputs=m * p.k, m=m, n_gemm=formulas.gemm_n(p), depth=formulas.gemm_k(p)
    )
    kernels = layers[layers["main"] & (layers["LayerType"] == "Conv")].rename(
        columns={"Theoretical Flops": "flops", "flops_sp_mul": "outputs"}
    )
    both = kernels.merge(problems[problems["groups"] == 1], on=["network", "flops", "outputs"])
    parts = []
    for tile_m, tile_n in formulas.TILES[MECHANISM]:
        blocks = ceil_div(both["m"], tile_m) * ceil_div(both["n_gemm"], tile_n)
        exact = blocks * (tile_m * tile_n) * round_up(both["depth"], DEPTH_STEP) == both["flops_sp_fma"]
        parts.append(both.assign(tile=f"{tile_m}x{tile_n}", blocks=blocks)[exact])
    fitting = pd.concat(parts).sort_index()
    by_layer = fitting.groupby(LAYER)
    is_unique = by_layer[list(SIZE_COLUMNS)].transform("nunique").max(axis=1) == 1
    fitting["tile"] = fitting["tile"].where(by_layer["tile"].transform("nunique") == 1, "")
    single = fitting[is_unique].drop_duplicates(LAYER).reset_index(drop=True)
    matched_count, exact = len(both.drop_duplicates(LAYER)), by_layer.ngroups
    lost = (
        f"without a match: {len(kernels) - matched_count} of no ungrouped problem in the tables of times,"
        f" {exact - len(single)} of several, {matched_count - exact} that no tile explains"
    )
    return single, lost


def _row(part: str, source: str, kernels: str, compared: str, note: str = "", **figures: Any) -> Record:
    """Return a row of the table. A row without figures names missing data or the origin of data."""
    texts = {"part": part, "source": source, "kernels": kernels, "compared": compared}
    return {**texts, "n": 0, "shapes": 0, **figures, "note": note}


def _ratio(source: str, kernels: str, terms: Any, counted: Any, shapes: int, **texts: str) -> Record:
    """Return a row of the table: the terms' FLOPs divided by the counted FLOPs, median and 5–95 % range."""
    low, median, high = np.percentile(np.asarray(terms) / np.asarray(counted), [5, 50, 95])
    figures = {"n": len(counted), "shapes": shapes, "ratio_median": median}
    figures |= {"ratio_p5": low, "ratio_p95": high}
    return _row("FLOPs", source, kernels, **{"compared": "terms", **texts}, **figures)


def _shapes(frame: pd.DataFrame) -> int:
    return len(frame[list(SIZE_COLUMNS)[1:]].drop_duplicates())


def _sizes(frame: pd.DataFrame) -> ConvColumns:
    return ConvColumns.of([frame[name] for name in SIZE_COLUMNS])


def convolution_flops(counted: pd.DataFrame, lost: str) -> Iterator[Record]:
    """Yield the ratio of the implicit GEMM's terms to its kernels, without and with the tile's padding."""
    slots = mechanism_b_max(gpu(DEVICE), MECHANISM)
    flops = formulas.MECHANISM_TERMS[MECHANISM](_sizes(counted), slots).arithmetic_flops
    yield _ratio(FP32, "implicit GEMM", flops, counted["flop_count_sp"], _shapes(counted), note=lost)
    for tile, part in counted[counted["tile"] != ""].groupby("tile"):
        padded = 2 * part["blocks"] * np.prod(physics.tile_sizes(str(tile))) * part["depth"]
        note = f"the tile follows from the count; the sums are padded to {DEPTH_STEP} on top"
        matched_count = {"note": note, "compared": PADDED}
        yield _ratio(FP32, f"implicit GEMM {tile}", padded, part["flop_count_sp"], _shapes(part), **matched_count)


def profile_flops(profile: pd.DataFrame) -> Iterator[Record]:
    """Yield the ratio for the transforms of non-fused Winograd."""
    counted = profile[profile["flop_count_sp"].notna()]
    for index, (name, as_run) in enumerate(TEXTS["transforms"].items()):
        part = counted[counted["kernel_name"].str.contains(name)]
        p, flop_count = _sizes(part), part["flop_count_sp"]
        side, images, vector = ceil_div(formulas.out_h(p), 4), round_up(p.n, IMAGE_STEP), formulas.vector_flops(4, 6, 3)
        tiles, filled = side * side, round_up(side, TILE_STEP) ** 2
        terms = formulas.transforms(formulas.sized(p), p.n * tiles, 4, 6, vector)[index]
        yield _ratio(FP16, name, terms, flop_count, _shapes(part))
        if index:  # filters have no tiles
            # An input's first pass runs on the padded tiles, its second on the image's tiles. Outputs are also scaled.
            run = images * (filled if index == 2 else (tiles + filled) / 2)
            rest = p.k * (18 * tiles * images + 4 * p.n * formulas.out_h(p) ** 2) if index == 2 else 0
            padded = formulas.transforms(formulas.sized(p), run, 4, 6, vector)[index] + rest
            yield _ratio(FP16, name, padded, flop_count, _shapes(part), compared=PADDED, note=as_run)


def instruction_errors(counted: pd.DataFrame, effort: Effort) -> Iterator[Record]:
    """Yield the errors of SEER's a·k²·C + b per block on held-out shapes, and of t_m·t_n·k²·C as in seer-time-only."""
    distinct = counted[counted["tile"] != ""].drop_duplicates(list(SIZE_COLUMNS))
    for tile, part in distinct.groupby("tile"):
        measured, depth = (part["instructions"] / part["blocks"]).to_numpy(), part["depth"].to_numpy()
        names = np.array([str(sizes) for sizes in part[list(SIZE_COLUMNS)].to_numpy().tolist()])
        fold, fitted = fold_labels(names, min(effort.folds, len(names)), effort.seed), np.empty(len(part))
        for label in np.unique(fold):
            fitted[fold == label] = _instructions(depth[fold != label], measured[fold != label], depth[fold == label])
        analytic = np.prod(physics.tile_sizes(str(tile))) * depth
        for compared, predicted in ((FORMULA, fitted), ("terms", analytic)):
            record = error_record(predicted, measured, np.arange(len(part)))
            del record["rmse_ms"]
            yield _row("instructions per block", FP32, f"implicit GEMM {tile}", compared, **record)


def _instructions(depth: np.ndarray, measured: np.ndarray, depths: np.ndarray) -> np.ndarray:
    """Fit SEER's formula on blocks that sum over ``depth``; return the instructions of blocks that sum over
    ``depths``."""
    return FormFit.of((depth, 1.0), measured).predict((depths, 1.0))


def time_errors(counted: pd.DataFrame, timed: pd.DataFrame, effort: Effort) -> list[Record]:
    """Return errors of SEER's time forms with counted instructions, and of other models on the same rows.

    Only rows of the most frequent tile are used. Times come from the public table: the same problem on the same GPU by
    implicit GEMM. The counted runs have no usable times.
    """
    chosen = (timed["gpu"] == DEVICE) & (timed["algorithm"] == ALGORITHM) & (timed["status"] == "ok")
    newest = timed[chosen & newest_version(timed, CONV)].drop_duplicates(list(SIZE_COLUMNS))
    columns = [*SIZE_COLUMNS, "tile", "blocks", "instructions", "depth"]
    kernels = counted.loc[counted["tile"] != "", columns].drop_duplicates(columns[: len(SIZE_COLUMNS)])
    both = newest.merge(kernels, on=list(SIZE_COLUMNS))
    tile = str(both["tile"].mode()[0])
    rows = candidate_rows([Dataset(both[both["tile"] == tile])])
    rounds = rounds_by("shape", rows, effort.folds, effort.seed)
    holdout = predict_rounds(rows, "listed", rounds, effort.timed(*MODELS_SHOWN), effort.tick)
    note = "DRAM transactions and classes analytical; the tile known, as the paper's Test-set-I has it"
    times = {"SEER's forms": seer_times(rows, tile, rounds), **holdout.time_us}
    return [
        _row(
            "time",
            FP32,
            f"implicit GEMM {tile}",
            name,
            note if name == "SEER's forms" else "",
            **error_record(time_us, rows.time_us, np.arange(len(rows))),
        )
        for name, time_us in times.items()
    ]


def seer_times(rows: Rows, tile: str, rounds: list[Round]) -> np.ndarray:
    """Return held-out times in µs (rows,) of the paper's forms. Instructions and times are fitted in every round."""
    tile_m, tile_n = physics.tile_sizes(tile)
    slots = mechanism_b_max(gpu(DEVICE), MECHANISM)[formulas.TILES[MECHANISM].index((tile_m, tile_n))]
    depth, blocks = (rows.frame[name].to_numpy(dtype=float) for name in ("depth", "blocks"))
    counted = rows.frame["instructions"].to_numpy() / blocks
    bound = mechanism_terms(rows, MECHANISM_CODE[MECHANISM]).bound
    # Sectors of 8 values that a block reads and writes, as in seer-time-only.
    w, reads, writes = physics.waves(blocks, slots), (tile_m + tile_n) * depth / 8, tile_m * tile_n / 8
    predicted = np.full(len(rows), np.nan)
    for train, test in rounds:
        per_block = _instructions(depth[train], counted[train], depth)
        forms = [physics.time_terms(form, w, slots, per_block, reads, writes) for form in range(3)]
        for code in np.unique(bound[test]):
            holdout, learn, form = test[bound[test] == code], train[bound[train] == code], int(code)
            if len(learn) < MIN_ROWS:
                learn, form = train, physics.UNDER_UTILISED
            matrix = physics.term_matrix(forms[form])
            fit = FormFit.of(tuple(matrix[learn].T), rows.time_us[learn])
            predicted[holdout] = fit.predict(tuple(matrix[holdout].T))
    return predicted


EXPERIMENT = program(run, "cudnn", "partial", "layer_counts", "kernel_counts")
