"""Problems and tables of problems that the tests of predictions share."""

from dataclasses import replace

import numpy as np
import pandas as pd
from hypothesis import strategies as st

from surrogate.bundle.bundle import Bundle
from surrogate.dataset.checks import normalise
from surrogate.dataset.problems import device_names
from surrogate.dataset.rows import rows_by_family
from surrogate.features.conv import Conv
from surrogate.features.problem import SIZE_COLUMNS
from surrogate.prediction.predictor import Predictor
from surrogate.uncertainty.domain import SettingKey, distances_to
from surrogate.uncertainty.fit import dtypes_of, groups_of

CONV = Conv(n=8, c=16, h=14, k=16, r=3, pad_h=1)
STRIDED = replace(CONV, stride_h=2, stride_w=2)
SETTINGS = {"dtype": ["fp32", "fp16"], "math": ["fma", "tensor_op"], "layout": ["NCHW", "NHWC"]}
DRAWN = {"n": [1, 5, 32], "c": range(1, 71), "h": range(7, 301), "k": range(1, 71), "r": [1, 2, 3, 5]}
DRAWN |= {"pad_h": range(4), "stride_h": [1, 2], **SETTINGS}
CONVS = st.builds(Conv, **{name: st.sampled_from(values) for name, values in DRAWN.items()})


def frame_of(convs, algorithms, gpu="v100", version="7.6.3") -> pd.DataFrame:
    """Return a row for every algorithm of every problem, without times."""
    place = {"gpu": gpu, "library": "cudnn", "library_version": version, "family": "conv"}
    settings = ("direction", "dtype", "math", "layout")
    rows = []
    for conv in convs:
        sizes = dict(zip(SIZE_COLUMNS, conv.sizes, strict=True))
        row = {**place, **{name: getattr(conv, name) for name in settings}, **sizes}
        rows += [{**row, "algorithm": name} for name in algorithms]
    return pd.DataFrame(rows)


def predicted(bundle: Bundle, frame: pd.DataFrame) -> pd.DataFrame:
    """Return a predictor's answers for the rows of a table, with the table's index."""
    return Predictor(bundle).predict(normalise(frame, "test")).to_frame().set_index(frame.index)


def by_models(bundle: Bundle, frame: pd.DataFrame) -> pd.DataFrame:
    """Return the answers of the fitted models for the rows of a table, computed without `Predictor`."""
    out = pd.DataFrame(index=range(len(frame)), columns=["predicted_us", "lower_us", "upper_us", "supported"])
    for kind, (positions, rows) in rows_by_family(frame, bundle.devices).items():
        part, times = bundle.family_models[kind.name], bundle.family_models[kind.name].model.predict(rows)
        device, distance = device_names(rows.frame), distances_to(part.domain.references, rows)
        half = part.widths.at(device, rows.candidate, dtypes_of(rows), distance, times)
        unseen = part.unmeasured_gpu.half_widths(groups_of(rows))
        settings = rows.frame[list(kind.setting_names)].astype(str).itertuples(index=False, name=None)
        names = zip(device, rows.frame["library"], settings, rows.frame["algorithm"], strict=True)
        measured = np.array([SettingKey(*key) in part.domain.settings for key in names])
        base = np.array([part.widths.base(*key) for key in zip(device, rows.candidate, dtypes_of(rows), strict=True)])
        half = np.where(measured, half, np.maximum(base, unseen))
        factor = np.exp(np.where(np.isin(device, part.domain.gpus), half, unseen))
        values = zip(times, times / factor, times * factor, part.support.supported(rows), strict=True)
        out.iloc[positions] = list(values)
    return out.infer_objects()
