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
from typing import Any
from zlib import crc32

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from experiments.experiment import HOME
from surrogate import Conv, Gpu, bundled
from surrogate.dataset.files import write_text
from surrogate.features.terms.kernel import Sized, sized
from surrogate.features.terms.tensor_core import STREAMING, TensorCoreLaw
from surrogate.network.calls import add_call
from surrogate.network.fusion import compiled
from surrogate.network.network import Network, Tally
from surrogate.network.predict import load_predictors
from surrogate.network.read import with_settings
from surrogate.network.torch_module import recorded_calls
from surrogate.prediction.specification import FILE, specification_of

PER_FAMILY = 3
"""Networks of a family, drawn by a hash of their names."""
PASS = ["network", "infer_img_size", "infer_batch_size", "torch"]
RUN = ["gpu", "layout", "compiled"]


def _hash(name: object) -> int:
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
    is_judged &= family.notna() & ((family.map(_hash) % 2 == 0) == training)
    size = table.groupby("network")["infer_img_size"].transform("max")
    table = table[is_judged & (table["infer_img_size"] == size)].dropna(subset="infer_batch_size").assign(family=family)
    drawn = table.drop_duplicates("network").sort_values("network", key=lambda names: names.map(_hash))
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
    with FakeTensorMode(allow_non_fake_inputs=True):
        for module in model.modules():
            for values in (module._parameters, module._buffers):
                for key, value in values.items():
                    if value is not None:
                        values[key] = torch.empty(value.shape, dtype=value.dtype, device="cuda")
        torch.set_autocast_enabled("cuda", True)
        try:
            calls, _ = recorded_calls(model, (torch.empty(batch, 3, size, size, device="cuda"),), False, None)
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


def _parts(row: Any) -> tuple[Gpu, Counter[Any], float]:
    """The GPU of a pass, how often each problem occurs that the law times, and the time of the others in µs."""
    predictors, works = _predictors(row.gpu), Counter(layer.work for layer in _as_run(row).layers)
    halves = {work for work in works if specification_of(predictors.gpu, work.dtype)}
    timed = Counter({sized(w): works[w] for w in halves if isinstance(w, Conv)})
    timed |= Counter({w: works[w] for w in halves if w.kind in STREAMING})
    others = [work for work in works if not isinstance(work, Conv) and work not in timed]
    return predictors.gpu, timed, sum(works[w] * time.time_us for w, time in predictors.answers(others, {}).items())


def log_errors(law: TensorCoreLaw, table: pd.DataFrame, parts: Iterable[Any]) -> np.ndarray:
    """(passes,) log of predicted / measured; ``parts`` of each pass."""
    totals = [
        others + sum(
            count * (law.convolution_us(w, gpu, "fp16") if isinstance(w, Sized) else law.streamed_us(w, gpu))
            for w, count in works.items()
        )
        for gpu, works, others in parts
    ]  # fmt: skip
    return np.log(np.array(totals) / 1e3 / table["measured_ms"].to_numpy())


def fitted(table: pd.DataFrame, start: TensorCoreLaw) -> TensorCoreLaw:
    """The law of robust least squares in log time, held near ``start`` where nothing decides; bandwidths stay below
    0.95 of the specification."""
    first, parts = np.log(astuple(start)), [_parts(row) for row in table.itertuples(index=False)]
    upper = np.where(["bandwidth" in name for name in asdict(start)], np.log(0.95), np.inf)

    def residuals(x: np.ndarray) -> np.ndarray:
        return np.append(log_errors(TensorCoreLaw(*np.exp(x).tolist()), table, parts), 0.3 * (x - first))

    settings = {"bounds": (-np.inf, upper), "loss": "soft_l1", "f_scale": 0.15, "diff_step": 1e-3, "max_nfev": 20}
    solution = least_squares(residuals, np.minimum(first, upper - 0.01), **settings)
    return TensorCoreLaw(*(float(f"{value:.4g}") for value in np.exp(solution.x)))


def main() -> None:
    """Fit on one GPU, judge on both; ship the law fitted on both, with the errors on the GPU and networks held out."""
    known = json.loads((bundled.FOLDER / FILE).read_bytes())
    start, train, held = TensorCoreLaw(**known["law"]), measured(training=True), measured(training=False)
    parts, judged = [_parts(row) for row in held.itertuples(index=False)], []
    for name in known["fitted_on"]:
        law = fitted(train[train["gpu"] == name], start)
        judged.append(held.assign(fitted_on=name, error=np.abs(log_errors(law, held, parts))))
    table = pd.concat(judged)
    median, half_width = table.loc[table["fitted_on"] != table["gpu"], "error"].quantile([0.5, 0.9]).round(3).tolist()
    across = {"gpus": len(known["fitted_on"]), "median_ape": median, "half_width": half_width}
    known |= {"law": asdict(fitted(train, start)), "by_kind": {"": across}}
    write_text(bundled.FOLDER / FILE, json.dumps(known, indent=1) + "\n")
    groups = table.groupby(["fitted_on", *RUN, "torch"])["error"]
    print(
        np.expm1(groups.describe(percentiles=[0.5, 0.9])[["50%", "90%"]]).assign(n=groups.size()).round(3).to_string()
    )


if __name__ == "__main__":
    main()
