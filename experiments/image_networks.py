"""How far off are whole image networks in half precision on GPUs whose convolutions nobody published?

``python -m experiments.image_networks`` fits the law of `surrogate.features.terms.tensor_core` to timm's measured
inference throughputs of half the families of networks, and judges it on the other half. ``rows()`` gives the passes of
the families held out, by what ships. Needs torch and timm; no GPU.
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import cache
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from experiments.experiment import HOME
from surrogate import Conv, Gpu, bundled
from surrogate.dataset.files import write_text
from surrogate.features.problem import HALF
from surrogate.features.terms.kernel import Sized, sized
from surrogate.features.terms.tensor_core import STREAMING, TensorCoreLaw
from surrogate.network.calls import add_call
from surrogate.network.fusion import compiled
from surrogate.network.network import HostTime, Network, Tally
from surrogate.network.predict import Predictors, load_predictors
from surrogate.network.read import with_settings
from surrogate.network.torch_module import recorded_calls
from surrogate.network.work import as_run
from surrogate.prediction.results import SPEC
from surrogate.prediction.specification import FILE, HALVES, specification_of

PER_FAMILY = 3
"""Networks of a family, drawn by a hash of their names."""
PASS = ["network", "infer_img_size", "infer_batch_size", "torch"]
RUN = ["gpu", "layout", "compiled"]


def crc(name: object) -> int:
    """A number that a name has on every machine."""
    return crc32(str(name).encode())


@cache
def measured(training: bool) -> pd.DataFrame:
    """Passes of the networks drawn from the half of the families that are fitted, or from the other: `PASS`, `RUN`,
    ``measured_ms``; the two newest releases, at a network's largest size."""
    from timm.models._registry import _model_to_module

    table = pd.read_parquet(HOME / "data" / "networks_timm.parquet").reset_index(drop=True)
    table["network"] = table["model"].str.split(".").str[0]
    family = table["network"].map(_model_to_module)
    # The older release's compiled passes are its first, and took other batches.
    is_judged = table["torch"].isin(["pt240", "pt291"]) & ~(table["compiled"] & (table["torch"] == "pt240"))
    is_judged &= family.notna() & ((family.map(crc) % 2 == 0) == training)
    size = table.groupby("network")["infer_img_size"].transform("max")
    table = table[is_judged & (table["infer_img_size"] == size)].dropna(subset="infer_batch_size").assign(family=family)
    drawn = table.drop_duplicates("network").sort_values("network", key=lambda names: names.map(crc))
    table = table[table["network"].isin(drawn.groupby("family").head(PER_FAMILY)["network"])]
    table["measured_ms"] = 1e3 * table["infer_batch_size"] / table["infer_samples_per_sec"]
    table = table.astype({"infer_batch_size": int}).assign(gpu="rtx-" + table["gpu"].str.removeprefix("rtx"))
    table = table.sort_values("measured_ms").drop_duplicates([*PASS, *RUN])
    return table[[_is_read(*row) for row in table[PASS].itertuples(index=False)]]


@cache
def read(name: str, size: int, batch: int, torch_release: str) -> Network:
    """timm's network as PyTorch runs it under autocast to fp16: fake tensors of a GPU that need not be there.

    timm's last runs merge the branches of reparameterised networks into one convolution.
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
        return network_of(name, model, (torch.empty(batch, 3, size, size),), amp="fp16")


def network_of(name: str, module: Any, inputs: tuple[object, ...], amp: str | None = None) -> Network:
    """What one forward pass of a module of fake tensors calls, in the mode that the module is in."""
    tally = Tally()
    for call in recorded_calls(module, inputs, training=False, amp=amp)[0]:
        add_call(call, tally, training=False)
    return tally.network(name, None)


def _is_read(*row: Any) -> bool:
    """False where a machine without a GPU cannot read the network, or most of its work is not convolutions."""
    try:
        network = read(*row)
    except RuntimeError:
        return False
    flops = sum(layer.work.flops for layer in network.layers)
    return not network.unsupported and sum(conv.flops for conv in network.convs) > 0.7 * flops


def rows() -> pd.DataFrame:
    """Passes of the families held out, as the shipped law predicts them: a row a pass, times in ms."""
    table = measured(training=False)
    times = [_predictors(str(row.gpu)).time(_as_run(row)) for row in table.itertuples(index=False)]
    table = table[[*PASS, *RUN, "measured_ms"]].assign(phase="inference")
    for name, end in {"predicted_ms": "total_us", "lower_ms": "lower_us", "upper_ms": "upper_us"}.items():
        table[name] = [getattr(time, end) / 1e3 for time in times]
    return table


_predictors = cache(load_predictors)


def _as_run(row: Any) -> Network:
    network = with_settings(read(*(getattr(row, name) for name in PASS)), None, row.layout)
    return compiled(network) if row.compiled else network


class Parts(NamedTuple):
    """A pass on a GPU: how often each problem occurs that a law times, what the others take, and the host."""

    gpu: Gpu
    timed: Counter[Any]
    others_us: float
    host: HostTime | None

    def time_us(self, law: TensorCoreLaw) -> float:
        """By the law."""
        kernels_us = self.others_us + sum(
            count * (law.convolution_us(work, self.gpu, dtype) if isinstance(work, Sized) else law.streamed_us(work, self.gpu))
            for (work, dtype), count in self.timed.items()
        )  # fmt: skip
        host = self.host
        return max(kernels_us, host.launch_us) + host.floor_us if host else kernels_us


def parts(network: Network, predictors: Predictors) -> Parts:
    """Convolutions and half-precision traffic go by a law where nobody measured them on the GPU."""
    works = Counter(as_run(layer.work, predictors.gpu) for layer in network.layers)
    answers = predictors.answers(works, predictors.selections(works))
    timed: Counter[Any] = Counter()
    others_us = 0.0
    for work, answer in answers.items():
        if isinstance(work, Conv) and answer.source == SPEC and specification_of(predictors.gpu, work.dtype, work.math):
            timed[sized(work), work.dtype] += works[work]
        elif work.kind in STREAMING and work.dtype in HALF:
            timed[work, work.dtype] += works[work]
        else:
            others_us += works[work] * answer.time_us
    return Parts(predictors.gpu, timed, others_us, network.host)


def log_errors(law: TensorCoreLaw, passes: Sequence[Parts], measured_ms: pd.Series) -> np.ndarray:
    """(passes,) log of predicted / measured."""
    return np.log([each.time_us(law) / 1e3 for each in passes]) - np.log(measured_ms.to_numpy())


def fitted(passes: Sequence[Parts], measured_ms: pd.Series, start: TensorCoreLaw) -> TensorCoreLaw:
    """The law of robust least squares in log time, held near ``start`` where nothing decides; bandwidths stay below
    0.95 of the specification, and what ``start`` leaves out stays out."""
    names = [name for name, value in asdict(start).items() if value]
    first = np.log([getattr(start, name) for name in names])
    upper = np.where(["bandwidth" in name for name in names], np.log(0.95), np.inf)

    def law(x: np.ndarray) -> TensorCoreLaw:
        return replace(start, **{name: float(f"{value:.4g}") for name, value in zip(names, np.exp(x), strict=True)})

    def residuals(x: np.ndarray) -> np.ndarray:
        return np.append(log_errors(law(x), passes, measured_ms), 0.3 * (x - first))

    settings = {"bounds": (-np.inf, upper), "loss": "soft_l1", "f_scale": 0.15, "diff_step": 1e-3, "max_nfev": 20}
    return law(least_squares(residuals, np.minimum(first, upper - 0.01), **settings).x)


def main() -> None:
    """Fit on one GPU, judge on both; ship the law fitted on both, with the errors on the GPU and networks held out."""
    laws = json.loads((bundled.FOLDER / FILE).read_bytes())
    known = laws[HALVES]
    start, train, held = TensorCoreLaw(**known["law"]), measured(training=True), measured(training=False)
    train_parts, held_parts = (
        [parts(_as_run(row), _predictors(row.gpu)) for row in table.itertuples()] for table in (train, held)
    )
    judged = []
    for name in known["fitted_on"]:
        mine = (train["gpu"] == name).to_numpy()
        law = fitted([each for each in train_parts if each.gpu.name == name], train["measured_ms"][mine], start)
        judged.append(held.assign(fitted_on=name, error=np.abs(log_errors(law, held_parts, held["measured_ms"]))))
    table = pd.concat(judged)
    median, half_width = table.loc[table["fitted_on"] != table["gpu"], "error"].quantile([0.5, 0.9]).round(3).tolist()
    across = {"gpus": len(known["fitted_on"]), "median_ape": median, "half_width": half_width}
    law = asdict(fitted(train_parts, train["measured_ms"], start))
    laws[HALVES] = known | {"law": law, "by_kind": {"": across}}
    write_text(bundled.FOLDER / FILE, json.dumps(laws, indent=1) + "\n")
    groups = table.groupby(["fitted_on", *RUN, "torch"])["error"]
    print(
        np.expm1(groups.describe(percentiles=[0.5, 0.9])[["50%", "90%"]]).assign(n=groups.size()).round(3).to_string()
    )


if __name__ == "__main__":
    main()
