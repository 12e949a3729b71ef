"""How far off are whole image networks in half precision on GPUs whose convolutions nobody published?

``python -m experiments.image_networks`` fits the law of `surrogate.features.terms.tensor_core` to timm's measured
inference throughputs of half the families of networks, and judges it on the other half. ``rows()`` gives the passes of
the families held out, by what ships. Needs torch and timm; no GPU.
"""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, astuple
from functools import cache
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import pandas as pd

from experiments.experiment import HOME
from surrogate import bundled
from surrogate.dataset.files import write_text
from surrogate.features.conv import Conv
from surrogate.features.gpu import Gpu
from surrogate.features.terms.kernel import sized
from surrogate.features.terms.tensor_core import STREAMING, TensorCoreLaw
from surrogate.network.calls import add_call
from surrogate.network.fusion import compiled
from surrogate.network.network import Network, Tally
from surrogate.network.predict import load_predictors
from surrogate.network.read import _with_settings
from surrogate.network.torch_module import _calls
from surrogate.prediction.specification import FILE, specification_of

PER_FAMILY = 3
"""Networks of a family, drawn by a hash of their names."""
PASS = ["network", "infer_img_size", "infer_batch_size", "torch"]
RUN = ["gpu", "layout", "compiled"]


@cache
def measured(training: bool) -> pd.DataFrame:
    """Passes of the networks drawn from the half of the families that are fitted, or from the other: `PASS`, `RUN`,
    ``measured_ms``; the two newest releases, at the size that a network was measured at most."""
    from timm.models._registry import _model_to_module

    table = pd.read_parquet(HOME / "data" / "networks_timm.parquet")
    table["network"] = table["model"].str.split(".").str[0]
    family = table["network"].map(_model_to_module)
    # The older release's compiled passes are its first, and took other batches.
    kept = table["torch"].isin(["pt240", "pt291"]) & ~(table["compiled"] & (table["torch"] == "pt240"))
    kept &= family.notna() & (family.map(lambda name: crc32(str(name).encode()) % 2 == 0) == training)
    size = table.groupby("network")["infer_img_size"].transform(lambda sizes: sizes.mode().max())
    table = (
        table[kept & (table["infer_img_size"] == size)]
        .dropna(subset="infer_batch_size")
        .assign(family=family)
    )
    drawn = table.drop_duplicates("network").sort_values("network", key=lambda names: names.map(_hash))
    table = table[table["network"].isin(drawn.groupby("family").head(PER_FAMILY)["network"])]
    table["measured_ms"] = 1e3 * table["infer_batch_size"] / table["infer_samples_per_sec"]
    table = table.astype({"infer_batch_size": int}).assign(gpu="rtx-" + table["gpu"].str.removeprefix("rtx"))
    table = table.sort_values("measured_ms").drop_duplicates([*PASS, *RUN])
    return table[[_is_read(*row) for row in table[PASS].itertuples(index=False)]]


def _hash(name: str) -> int:
    return crc32(name.encode())


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
    with FakeTensorMode(allow_non_fake_inputs=True):
        for module in model.modules():
            for values in (module._parameters, module._buffers):
                for key, value in values.items():
                    if value is not None:
                        values[key] = torch.empty(value.shape, dtype=value.dtype, device="cuda")
        torch.set_autocast_enabled("cuda", True)
        try:
            calls = _calls(model, (torch.empty(batch, 3, size, size, device="cuda"),), False, None)
        finally:
            torch.set_autocast_enabled("cuda", False)
    tally = Tally()
    for call in calls:
        add_call(call, tally, training=False)
    return tally.network(name, batch)


def _is_read(*row: Any) -> bool:
    """False where a machine without a GPU cannot read the network, or most of its work is not convolutions."""
    try:
        network = read(*row)
    except RuntimeError:
        return False
    flops = sum(layer.work.flops for layer in network.layers)
    return not network.unsupported and sum(conv.flops for conv in network.convs) > 0.7 * flops


def _as_run(row: Any) -> Network:
    network = _with_settings(read(*(getattr(row, name) for name in PASS)), None, row.layout)
    return compiled(network) if row.compiled else network


def rows() -> pd.DataFrame:
    """Passes of the families held out, as the shipped law predicts them: a row a pass, times in ms."""
    records = []
    for row in measured(training=False).itertuples(index=False):
        time = _predictors(row.gpu).time(_as_run(row))
        ends = {"predicted_ms": time.total_us, "lower_ms": time.lower_us, "upper_ms": time.upper_us}
        known = {name: getattr(row, name) for name in (*PASS, *RUN, "measured_ms")}
        records.append({**known, "phase": "inference", **{name: end / 1e3 for name, end in ends.items()}})
    return pd.DataFrame(records)


_predictors = cache(load_predictors)


class _Pass(NamedTuple):
    """A measured pass: the GPU, how often each problem occurs that the law times, and the time of all others."""

    gpu: Gpu
    works: Counter[Any]
    others_us: float
    measured_us: float

    def log_error(self, law: TensorCoreLaw) -> float:
        """log(predicted / measured)."""
        total = self.others_us
        for work, count in self.works.items():
            conv = hasattr(work, "tensor_bytes")
            total += count * (
                law.convolution_us(work, self.gpu, "fp16") if conv else law.streamed_us(work, self.gpu)
            )
        return float(np.log(total / self.measured_us))


def _passes(table: pd.DataFrame) -> list[_Pass]:
    found = []
    for row in table.itertuples(index=False):
        predictors = _predictors(row.gpu)
        works = Counter(layer.work for layer in _as_run(row).layers)
        law = {
            w
            for w in works
            if isinstance(w, Conv) or (w.kind in STREAMING and specification_of(predictors.gpu, w.dtype))
        }
        times = predictors.timed([work for work in works if work not in law])
        others = sum(works[work] * time.time_us for work, time in times.items())
        timed = Counter({sized(w) if isinstance(w, Conv) else w: works[w] for w in law})
        found.append(_Pass(predictors.gpu, timed, others, 1e3 * row.measured_ms))
    return found


def fitted(passes: Iterable[_Pass], start: TensorCoreLaw) -> TensorCoreLaw:
    """The law of robust least squares in log time, held near ``start`` where nothing decides; bandwidths stay below
    0.95 of the specification."""
    from scipy.optimize import least_squares

    first = np.log(astuple(start))
    upper = np.where(["bandwidth" in name for name in asdict(start)], np.log(0.95), np.inf)
    found = least_squares(
        lambda x: [*(one.log_error(TensorCoreLaw(*np.exp(x).tolist())) for one in passes), *(0.3 * (x - first))],
        np.minimum(first, upper - 0.01), bounds=(-np.inf, upper), loss="soft_l1", f_scale=0.15, diff_step=1e-3, max_nfev=20,
    )  # fmt: skip
    return TensorCoreLaw(*(float(f"{value:.4g}") for value in np.exp(found.x)))


def main() -> None:
    """Fit on one GPU, judge on both; ship the law fitted on both, with the errors on GPUs held out."""
    known = json.loads((bundled.FOLDER / FILE).read_bytes())
    start, train, held = TensorCoreLaw(**known["law"]), measured(training=True), measured(training=False)
    passes, judged = _passes(held), []
    for name in known["gpus"]:
        law = fitted(_passes(train[train["gpu"] == name]), start)
        judged.append(held.assign(fitted_on=name, log_error=[one.log_error(law) for one in passes]))
    table = pd.concat(judged)
    table["error_pct"] = 100 * np.abs(np.expm1(table["log_error"]))
    across = np.abs(table.loc[table["fitted_on"] != table["gpu"], "log_error"])
    known |= {"law": asdict(fitted(_passes(train), start)), "half_width": round(across.quantile(0.9), 3)}
    known |= {
        "median_ape": round(float(across.median()), 3),
        "factor_90": round(float(np.exp(across.quantile(0.9))), 3),
    }
    write_text(bundled.FOLDER / FILE, json.dumps(known, indent=1) + "\n")
    print(
        table.groupby(["fitted_on", *RUN, "torch"])["error_pct"]
        .describe(percentiles=[0.5, 0.9])
        .round(1)
        .to_string()
    )


if __name__ == "__main__":
    main()
