"""Public names and where they are defined: each is imported when it is first asked for."""

from . import formats as formats, models as models, network as network, trace as trace, tuning as tuning
from .bundle.bundle import Bundle as Bundle, save as save
from .bundle.train import train as train
from .dataset.store import Dataset as Dataset, read_dataset as read_dataset, write_dataset as write_dataset
from .features.conv import Conv as Conv
from .features.errors import InputError as InputError
from .features.gpu import Gpu as Gpu, gpu as gpu, gpus as gpus
from .prediction.autotune import autotune as autotune
from .prediction.evaluate import calibrate as calibrate, evaluate as evaluate
from .prediction.predictor import Predictor as Predictor
from .prediction.results import Prediction as Prediction, Predictions as Predictions, Selection as Selection
from .prediction.shipped import load as load, predict as predict, select as select
from .report.comparison import Comparison as Comparison, compare as compare

__version__: str
