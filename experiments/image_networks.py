"""How far off are whole image networks in half precision on GPUs whose convolutions nobody published?

``python -m experiments.image_networks`` fits the analytical model of `surrogate.features.analytical` to timm's measured
inference throughputs of half of the families of networks. It judges the model on the other half. ``rows()`` returns the
passes of the held-out families, predicted by the shipped bundles. The script needs torch and timm, but no GPU.
"""

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from functools import cache
from typing import Any, NamedTuple, Self
from zlib import crc32

import numpy as np
import pandas as pd
from scipy.optimize import least_squares
from scipy.sparse import csr_matrix

from experiments.experiment import HOME
from surrogate import Conv, Gpu, bundled
from surrogate.dataset.files import write_text
from surrogate.features.analytical import (
    AUTOCAST_FIELDS,
    BANDWIDTH_FIELDS,
    KERNEL_GAP_US,
    TensorCoreModel,
    bandwidth_field,
)
from surrogate.features.families.operator import MemoryBound, Operator
from surrogate.features.roofline import memory_us
from surrogate.features.terms import Sized, sized
from surrogate.network.aten_call import Call
from surrogate.network.dispatch import add_call
from surrogate.network.network import Network, NetworkBuilder, ReadOptions, with_settings
from surrogate.network.operators import with_default_math
from surrogate.network.predict import Predictors, load_predictors
from surrogate.network.runtime import fuse_layers
from surrogate.network.torch_recording import Arguments, record_calls
from surrogate.prediction.results import DATASHEET
from surrogate.prediction.sources.datasheet import FILE, HALVES, datasheet_models

PER_FAMILY = 3
"""Networks per family, drawn by a hash of their names."""
PASS = ["network", "infer_img_size", "infer_batch_size", "torch"]
RUN = ["gpu", "layout", "compiled"]


def crc(name: object) -> int:
    """Return a number for a name that is the same on every machine."""
    return crc32(str(name).encode())


@cache
def measured(training: bool, convolutional: bool = True) -> pd.DataFrame:
    """Return the measured passes of the networks drawn from the training half of the families, or from the other half.

    Columns are `PASS`, `RUN` and ``measured_ms``. The passes are those of the two newest releases, at a network's
    largest size. ``convolutional`` selects networks whose work is mostly convolutions, otherwise the others, mostly
    transformers.
    """
    from timm.models._registry import _model_to_module

    table = pd.read_parquet(HOME / "data" / "networks_timm.parquet").reset_index(drop=True)
    table["network"] = table["model"].str.split(".").str[0]
    family = table["network"].map(_model_to_module)
    # The older release's compiled passes are the first ones published, with other batches.
    is_judged = table["torch"].isin(["pt240", "pt291"]) & ~(table["compiled"] & (table["torch"] == "pt240"))
    is_judged &= family.notna() & ((family.map(crc) % 2 == 0) == training)
    size = table.groupby("network")["infer_img_size"].transform("max")
    table = table[is_judged & (table["infer_img_size"] == size)].dropna(subset="infer_batch_size").assign(family=family)
    drawn = table.drop_duplicates("network").sort_values("network", key=lambda names: names.map(crc))
    table = table[table["network"].isin(drawn.groupby("family").head(PER_FAMILY)["network"])]
    table["measured_ms"] = 1e3 * table["infer_batch_size"] / table["infer_samples_per_sec"]
    table = table.astype({"infer_batch_size": int}).assign(gpu="rtx-" + table["gpu"].str.removeprefix("rtx"))
    table = table.sort_values("measured_ms").drop_duplicates([*PASS, *RUN])
    return table[[_is_read(convolutional, *row) for row in table[PASS].itertuples(index=False)]]


@cache
def read(name: str, size: int, batch: int, torch_release: str) -> Network:
    """Return timm's network as PyTorch runs it under autocast to fp16, on fake tensors of a GPU.

    In timm's last runs, the branches of reparameterised networks are merged into one convolution.
    """
    import timm
    import torch
    from timm.utils.model import reparameterize_model
    from torch._subclasses.fake_tensor import FakeTensorMode

    with torch.device("meta"):
        model = timm.create_model(name).eval()
        model = reparameterize_model(model) if torch_release == "pt291" else model
    with FakeTensorMode(allow_non_fake_inputs=True) as fake:
        model._apply(lambda values: fake.from_tensor(torch.empty(values.shape, dtype=values.dtype)))
        inputs = Arguments((torch.empty(batch, 3, size, size),), {})
        return network_of(name, record_calls(model, inputs, ReadOptions(amp="fp16")).forward)


def network_of(name: str, calls: Iterable[Call]) -> Network:
    """Return the network of a forward pass that makes these calls."""
    builder = NetworkBuilder()
    for call in calls:
        add_call(call, builder, training=False)
    return builder.network(name, None)


def _is_read(convolutional: bool, *row: Any) -> bool:
    """Return True if a machine without a GPU can read the network, and if it is of that kind."""
    try:
        network = read(*row)
    except RuntimeError:
        return False
    flops = sum(layer.problem.flops for layer in network.layers)
    is_convolutional = sum(conv.flops for conv in network.convs) > 0.7 * flops
    return not network.unsupported and is_convolutional == convolutional


def rows() -> pd.DataFrame:
    """Return the passes of the held-out families as the shipped bundles predict them.

    There is one row per pass, with times in ms, and one set per kind and runtime.
    """
    kinds = {"convolutions": measured(training=False), "other image networks": measured(False, convolutional=False)}
    table = pd.concat([part.assign(kind=kind) for kind, part in kinds.items()], ignore_index=True)
    times = [predictors_of(str(row.gpu)).time(_as_run(row)) for row in table.itertuples(index=False)]
    way = table["layout"].where(~table["compiled"], "compiled")
    table = table[[*PASS, *RUN, "measured_ms"]].assign(phase="inference", set="timm, " + table["kind"] + ", " + way)
    for name, end in {"predicted_ms": "total_us", "lower_ms": "lower_us", "upper_ms": "upper_us"}.items():
        table[name] = [getattr(time, end) / 1e3 for time in times]
    return table


predictors_of = cache(load_predictors)


def _as_run(row: Any) -> Network:
    network = with_settings(read(*(getattr(row, name) for name in PASS)), None, row.layout)
    return fuse_layers(network) if row.compiled else network


class Convolutions(NamedTuple):
    """Distinct convolutions of some passes on one GPU: arrays of their sizes, and (passes, convolutions) counts."""

    gpu: Gpu
    dtype: str
    sizes: Sized
    counts: csr_matrix


@dataclass(frozen=True, slots=True)
class Passes:
    """Times of networks' passes by an analytical model of convolutions and half-precision traffic without measurements.

    ``others_us`` (passes,) does not depend on the model. ``full_us`` is the time of the traffic at the full bandwidth,
    by share.
    """

    others_us: np.ndarray
    full_us: Mapping[str, np.ndarray]
    convolutions: tuple[Convolutions, ...]

    def kernels_us(self, model: TensorCoreModel) -> np.ndarray:
        """Return the times (passes,) by the analytical model."""
        streamed = [full_us / getattr(model, share) for share, full_us in self.full_us.items() if full_us.any()]
        convolved = [each.counts @ model.convolution_us(each.sizes, each.gpu, each.dtype) for each in self.convolutions]
        return self.others_us + sum([*streamed, *convolved])


def stacked(networks: Sequence[Network], predictors: Sequence[Predictors]) -> Passes:
    """Return the passes of networks, each on the GPU of its predictors."""
    others_us = np.zeros(len(networks))
    full_us = {share: np.zeros(len(networks)) for share in {*BANDWIDTH_FIELDS.values(), *AUTOCAST_FIELDS.values()}}
    counts: defaultdict[tuple[Gpu, str], defaultdict[Sized, defaultdict[int, float]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(float))
    )
    for row, (network, predictor) in enumerate(zip(networks, predictors, strict=True)):
        works: defaultdict[Any, float] = defaultdict(float)
        for layer in network.layers:
            works[with_default_math(layer.problem, predictor.gpu)] += layer.time_factor
        answers = predictor.answers(works, predictor.selections(works))
        for work, answer in answers.items():
            gpu, count = predictor.gpu, works[work]
            if isinstance(work, Conv) and answer.source == DATASHEET and datasheet_models(gpu, work.dtype, work.math):
                counts[gpu, work.dtype][sized(work)][row] += count
            elif answer.source == DATASHEET and (share := _fitted_share(work, gpu)):
                full_us[share][row] += count * memory_us(1.0 * work.dram_bytes, gpu.dram_gbs)
                others_us[row] += count * KERNEL_GAP_US
            else:
                others_us[row] += count * answer.time_us
    convolutions = []
    for (gpu, dtype), of_gpu in counts.items():
        sizes = Sized(*map(np.array, zip(*of_gpu, strict=True)))
        cells = [(row, column, count) for column, each in enumerate(of_gpu.values()) for row, count in each.items()]
        rows, columns, values = map(np.array, zip(*cells, strict=True))
        matrix = csr_matrix((values, (rows, columns)), shape=(len(networks), len(of_gpu)))
        convolutions.append(Convolutions(gpu, dtype, sizes, matrix))
    return Passes(others_us, full_us, tuple(convolutions))


def _fitted_share(work: Any, gpu: Gpu) -> str | None:
    """Return the name of the share of the bandwidth that determines a kernel's time, if one does."""
    serial_us = work.serial_us(gpu) if isinstance(work, MemoryBound) else 0.0
    is_serial = serial_us > memory_us(1.0 * work.dram_bytes, gpu.dram_gbs)
    return None if is_serial or not isinstance(work, Operator) else bandwidth_field(work)


class Search(NamedTuple):
    """Logarithms of a model's shares: start and bounds of a search.

    A share that ``start`` lacks stays absent. Bandwidths stay below 0.95 of the datasheet peak.
    """

    start: TensorCoreModel
    names: list[str]
    first: np.ndarray
    upper: np.ndarray

    @classmethod
    def from_model(cls, start: TensorCoreModel, fitted_names: Collection[str] = ()) -> Self:
        """Return a search that begins at this model, for the fields ``fitted_names`` (empty: all)."""
        names = [name for name, value in asdict(start).items() if value and name in (fitted_names or asdict(start))]
        upper = np.array([np.log(0.95) if "bandwidth" in name else np.inf for name in names])
        return cls(start, names, np.minimum(np.log([getattr(start, name) for name in names]), upper - 0.01), upper)

    def model(self, logarithms: np.ndarray) -> TensorCoreModel:
        """Return the analytical model of these logarithms."""
        return replace(self.start, **dict(zip(self.names, np.exp(logarithms).tolist(), strict=True)))


def fitted(
    passes: Passes,
    taken: np.ndarray,
    measured_ms: pd.Series,
    start: TensorCoreModel,
    fitted_names: Collection[str] = (),
) -> TensorCoreModel:
    """Return the model of robust least squares in log time over the ``taken`` passes, for fields as in `Search`.

    Parameters that no pass determines stay near ``start``.
    """
    search, log_measured = Search.from_model(start, fitted_names), np.log(1e3 * measured_ms.to_numpy())

    def residuals(x: np.ndarray) -> np.ndarray:
        errors = np.log(passes.kernels_us(search.model(x))) - log_measured
        return np.append(errors[taken], 0.3 * (x - search.first))

    bounds = (-np.inf, search.upper)
    solution = least_squares(residuals, search.first, bounds=bounds, loss="soft_l1", f_scale=0.15, diff_step=1e-3)
    return rounded(search.model(solution.x))


def rounded(model: TensorCoreModel) -> TensorCoreModel:
    """Return the model with four digits of each share, as it is shipped."""
    return TensorCoreModel(*(float(f"{value:.4g}") for value in astuple(model)))


def main() -> None:
    """Fit on one GPU and judge on both. Write the model fitted on both, with the errors on held-out GPU and
    networks."""
    models = json.loads((bundled.FOLDER / FILE).read_bytes())
    stored = models[HALVES]
    start = TensorCoreModel(**stored["law"])
    table = pd.concat([measured(training).assign(training=training) for training in (True, False)], ignore_index=True)
    rows = list(table.itertuples(index=False))
    passes = stacked([_as_run(row) for row in rows], [predictors_of(str(row.gpu)) for row in rows])
    trained, log_measured = table["training"].to_numpy(), np.log(1e3 * table["measured_ms"])
    judged = []
    for name in stored["fitted_on"]:
        model = fitted(passes, trained & (table["gpu"] == name).to_numpy(), table["measured_ms"], start)
        error = np.abs(np.log(passes.kernels_us(model)) - log_measured)
        judged.append(table.assign(fitted_on=name, error=error)[~trained])
    holdout = pd.concat(judged)
    median, half_width = (
        holdout.loc[holdout["fitted_on"] != holdout["gpu"], "error"].quantile([0.5, 0.9]).round(3).tolist()
    )
    across = {"gpus": len(stored["fitted_on"]), "median_ape": median, "half_width": half_width}
    model = asdict(fitted(passes, trained, table["measured_ms"], start))
    by_kind = stored["by_kind"] | {"": across}  # the others are fitted to whole passes and to training steps
    models[HALVES] = stored | {"law": model, "by_kind": by_kind}
    write_text(bundled.FOLDER / FILE, json.dumps(models, indent=1) + "\n")
    groups = holdout.groupby(["fitted_on", *RUN, "torch"])["error"]
    print(
        np.expm1(groups.describe(percentiles=[0.5, 0.9])[["50%", "90%"]]).assign(n=groups.size()).round(3).to_string()
    )


if __name__ == "__main__":
    main()
