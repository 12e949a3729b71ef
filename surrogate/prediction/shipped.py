"""The bundles that ship with the package, found by GPU; and `load`, `predict` and `select` by a GPU's name."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from math import exp
from os import environ
from pathlib import Path
from typing import Any

from surrogate import bundled
from surrogate.bundle.bundle import INDEX, Bundle, FamilyModel, StoredModel, load as load_bundle, stored_index
from surrogate.features import CUDNN_GRAPH, FASTEST, HALF, VENDOR_LIBRARIES, InputError, UnknownGpuError, nearest
from surrogate.features.families import DEFAULT_FAMILY, FAMILIES, AnyProblem, Family, family_of
from surrogate.features.families.operator_family import OperatorFamily
from surrogate.features.gpu import ENVIRONMENT_VARIABLE, Gpu, canonical, gpu
from surrogate.models.call_cost import CallCost, CallKey
from surrogate.models.support import Support
from surrogate.prediction.kernel_times import within_peaks
from surrogate.prediction.predictor import Predictor
from surrogate.prediction.results import DATASHEET, MODEL, NOTES, Answers, Prediction, Predictions
from surrogate.prediction.sources.datasheet import KernelFunction, shipped_product_models
from surrogate.uncertainty.domain import Domain
from surrogate.uncertainty.intervals import ALL, UnmeasuredGpuErrors, Widths

MIN_AMD_ROWS = 1000
"""Minimum rows of an AMD board. Fewer rows come from one benchmark, which predicts other products worse than
claimed."""
ALL_DTYPES = "all"
AMD = frozenset({"amd"})


@dataclass(frozen=True, slots=True)
class Shipped:
    """A shipped bundle: its folder, and the GPUs (registry names), vendors, libraries and families that it covers."""

    path: Path
    families: Mapping[str, frozenset[str]]
    """Family → element types in its training data."""
    operators: Mapping[str, frozenset[str]]
    """Family → operators in its training data."""
    gpus: frozenset[str]
    vendors: frozenset[str]
    libraries: frozenset[str]
    rows: int
    call_costs: Mapping[CallKey, CallCost]
    held_out: Mapping[str, Any]
    is_fastest: bool
    """Whether it answers `FASTEST` only."""

    def evidence(self, family: str, gpu_name: str) -> dict[str, Any]:
        """Return the evidence for a family on a GPU: the measured rows there, and the expected errors of times.

        ``median_ape`` is the median of |predicted / measured − 1| on held-out shapes of all GPUs of the bundle.
        ``factor_90`` is the factor that 90 % of the times on this GPU stay within. If the GPU was not measured
        (``source`` datasheet), both figures are of held-out GPUs. ``dtypes`` are the element types measured on the GPU.
        ``factors_90`` is the same factor for each of them, because the most frequent type decides ``factor_90``.
        """
        family_model = _cached_bundle(self.path).family_models[family]
        holdout, unseen = self.held_out[family], family_model.unmeasured_gpu
        unseen = unseen.by_group[unseen.group_key(gpu(gpu_name).product_line, "")]
        of_gpu = {row["dtype"]: row for row in holdout["intervals"] if row.get("gpu") == gpu_name}
        interval = of_gpu.pop(ALL_DTYPES, None)
        return {
            "bundle": self.path.name,
            "rows": interval["rows"] if interval else 0,
            "dtypes": family_model.domain.dtypes(gpu_name),
            "source": MODEL if interval else DATASHEET,
            "median_ape": holdout["time"]["median_ape"] if interval else unseen.median_ape,
            "factor_90": interval["interval_factor"] if interval else exp(unseen.half_width),
            "factors_90": {name: row["interval_factor"] for name, row in of_gpu.items()},
        }


@cache
def shipped() -> tuple[Shipped, ...]:
    """Return all bundles that ship with the package, in the order of their names."""
    bundles = []
    for file in sorted(bundled.FOLDER.glob(f"*/{INDEX}")):
        index = stored_index(file.parent)[1]
        data = index.card["data"]
        listed = data.get("families", {})
        bundles.append(
            Shipped(
                path=file.parent,
                families={name: frozenset(listed.get(name, {}).get("dtype", ())) for name in index.parts},
                operators={name: frozenset(listed.get(name, {}).get("operator", ())) for name in index.parts},
                gpus=frozenset(canonical(name) for name in data["gpus"]),
                vendors=frozenset(gpu(name).vendor for name in data["gpus"]),
                libraries=frozenset(text.partition(" ")[0] for text in data["libraries"]),
                rows=data.get("ok_rows", 0),
                call_costs=index.launches,
                held_out=index.card.get("held_out", {}),
                is_fastest=any(each["algorithms"] == [FASTEST] for each in listed.values()),
            )
        )
    return tuple(bundles)


def bundle_for(device: Gpu, library: str | None = None) -> Path:
    """Return the shipped bundle with most rows on this GPU, else the vendor's bundle that was fitted on most GPUs.

    Raises `InputError` if no bundle covers the GPU or the library.
    """
    with_family = tuple(bundle for bundle in shipped() if DEFAULT_FAMILY in bundle.families and not bundle.is_fastest)
    fitting = [b for b in with_family if library is None or library in b.libraries]
    vendor_library = VENDOR_LIBRARIES.get(device.vendor) if library is None else library
    own = [b for b in fitting if device.name in b.gpus]
    covering = own or [b for b in fitting if device.vendor in b.vendors and vendor_library in b.libraries]
    if covering:
        return max(covering, key=lambda b: (device.name in b.gpus or len(b.gpus), b.rows, b.path.name)).path
    if library == CUDNN_GRAPH and device.vendor == "nvidia":
        raise InputError(NOTES["no_engine_configuration"].format(device.name))
    place = f"{device.name} with {library}" if library else device.name
    libraries = sorted({name for b in shipped() if device.vendor in b.vendors for name in b.libraries} - {library})
    hint = nearest(library or "", libraries)
    listed = libraries if library and libraries else sorted({name for b in with_family for name in b.gpus})
    raise InputError(
        f"no bundle for {place} ships with the package; "
        + (f"shipped: {', '.join(listed)}{hint}; " if listed else "this installation ships no bundle; ")
        + "train one with `seer train DATA -o BUNDLE` and give its path"
    )


def bundles_by_family(device: Gpu) -> dict[str, Shipped]:
    """Return family → shipped bundle that covers it on a GPU."""
    answers = {name: _covering(name, {}, device.name) for bundle in shipped() for name in bundle.families}
    answers.pop(DEFAULT_FAMILY, None)
    try:
        path = bundle_for(device)
    except InputError:
        return answers
    own = next(bundle for bundle in shipped() if bundle.path == path)
    return dict.fromkeys(own.families, own) | {k: v for k, v in answers.items() if k not in own.families}


def is_path(text: str | Path) -> bool:
    """Return whether ``text`` is a `Path`, has a separator, or is the name of a folder that holds a bundle."""
    return isinstance(text, Path) or "/" in text or "\\" in text or (Path(text) / "bundle.json").is_file()


def bundle_path(text: str | Path, problem: AnyProblem | None = None) -> Path:
    """Return the bundle's folder for a path, or for the name of a GPU or of a shipped bundle.

    A name of an existing file or folder is a path. For a GPU it is the bundle of convolutions, or the one that covers
    ``problem``. Raises `InputError` if there is neither such a folder nor such a GPU.
    """
    if is_path(text) or Path(text).exists():
        return Path(text)
    try:
        device = gpu(str(text))
    except InputError as error:
        if paths := [bundle.path for bundle in shipped() if bundle.path.name == text]:
            return paths[0]
        raise InputError(
            f"{text}: no bundle there (no bundle.json; `seer train` makes one), and no GPU of that name: {error}"
        ) from None
    family = family_of(problem).name if problem else DEFAULT_FAMILY
    if family != DEFAULT_FAMILY and any(family in bundle.families for bundle in shipped()):
        settings = {"operator": getattr(problem, "kind", ""), "dtype": getattr(problem, "dtype", "")}
        return _covering(family, settings, device.name).path
    return bundle_for(device)


def shipped_gpu(name: str) -> Gpu | None:
    """Return the GPU of a name that `bundle_path` takes for a GPU's, or None."""
    try:
        return None if is_path(name) or Path(name).exists() else gpu(name)
    except UnknownGpuError:
        return None


def as_bundle(bundle: object) -> Bundle:
    """Return a bundle from a `Bundle`, a predictor, a folder, or a GPU's name (its shipped bundle)."""
    if isinstance(bundle, str | Path):
        return load_bundle(bundle_path(bundle))
    bundle = bundle.bundle if isinstance(bundle, Predictor) else bundle
    if not isinstance(bundle, Bundle):
        raise InputError(f"a {type(bundle).__name__} is not a bundle; give a Bundle, its folder, or a GPU's name")
    return bundle


def load(gpu_or_path: object, *, gpu: str | None = None, library: str | None = None) -> Predictor:
    """Return a predictor for a GPU, or for a bundle.

    A GPU that no shipped bundle was fitted on uses its vendor's bundle and its datasheet. Its answers have wider
    intervals and the ``source`` ``datasheet``.

    Parameters
    ----------
    gpu_or_path
        A GPU (its name or a `Gpu`), whose shipped bundle is loaded; or a `Bundle`, or the path of its folder.
    gpu
        Name of the GPU to predict for, if a bundle or a path is given.
    library
        Library whose candidates compete; None means all of them.

    Returns
    -------
    Predictor
        The predictor for this GPU.

    Raises
    ------
    InputError
        If the GPU is unknown or ambiguous, or if the bundle cannot be read.
    """
    name = gpu_or_path.name if isinstance(gpu_or_path, Gpu) else gpu_or_path
    if not isinstance(name, str) or is_path(name):
        return Predictor(as_bundle(name), gpu=gpu, library=library)
    if gpu is not None:
        raise InputError(f"two GPUs are named, {name!r} and {gpu!r}; give gpu= only with a bundle's path")
    device = _registered_gpu(name)
    try:
        bundle = _cached_bundle(bundle_for(device, library))
    except InputError:  # convolutions were not measured on the GPU or with the library, but other kernels may have been
        others = [bundle for bundle in shipped() if DEFAULT_FAMILY not in bundle.families]
        if not any(library in b.libraries if library else device.name in b.gpus for b in others):
            raise
        bundle = Bundle({})
    return Predictor(_joined(bundle), gpu=name, library=library)


def _covering(family: str, settings: Mapping[str, str], gpu_name: str) -> Shipped:
    """Return the shipped bundle for a family. If several bundles are equal in the order, the last one is returned.

    Bundles with the operator in the type, and with the library, are preferred. Then the order is:

    1. on AMD, an AMD-only bundle (`_of_amd`), if the operator is tiled or not given, or if no operator of the family is
       tiled, and if the others have fewer than `MIN_AMD_ROWS` rows on the GPU or lack the operator and type;
    2. measured on this GPU, with this type;
    3. with this type;
    4. if no type is given, measured on this GPU;
    5. any, except the AMD-only bundles.
    """
    bundles = [bundle for bundle in shipped() if family in bundle.families]
    amd_only = [bundle for bundle in bundles if bundle.vendors == AMD]
    bundles = [bundle for bundle in bundles if bundle not in amd_only]
    dtype, kind, library = (settings.get(name, "") for name in ("dtype", "operator", "library"))
    typed = [bundle for bundle in bundles if dtype in bundle.families[family]] or bundles
    bundles = [bundle for bundle in typed if kind in bundle.operators[family]] or bundles
    bundles = [bundle for bundle in bundles if library in bundle.libraries] or bundles
    tiled_kinds = FAMILIES[family].tiled_kinds
    if gpu_name and {gpu(gpu_name).vendor} == AMD and (not kind or not tiled_kinds or kind in tiled_kinds):
        models = [_cached_bundle(bundle.path).family_models[family] for bundle in bundles if gpu_name in bundle.gpus]
        measured_keys = [key for model in models for key in model.domain.settings if key.gpu == gpu_name]
        rows = sum(count for model in models for key, count in model.row_counts.items() if key.gpu == gpu_name)
        is_measured = not kind or any(key.setting_values[:2] == (kind, dtype) for key in measured_keys)
        own = _of_amd(amd_only, family, settings, gpu(gpu_name))
        if own and (rows < MIN_AMD_ROWS or not is_measured):
            return own[-1]
    measured = [bundle for bundle in bundles if gpu_name in bundle.gpus]
    with_type = [[b for b in group if dtype in b.families[family]] for group in (measured, bundles)]
    return next(group for group in (*with_type, measured if not dtype else [], bundles) if group)[-1]


def _of_amd(bundles: Sequence[Shipped], family: str, settings: Mapping[str, str], device: Gpu) -> list[Shipped]:
    """Return the AMD-only bundles with the type on the GPU's architecture, or else all that may answer.

    Both half-precision types count as one. Without measurements on the architecture, an analytical model answers for
    tiled operators of any type, and other operators need the type.
    """
    dtype, library = settings.get("dtype", ""), settings.get("library", "")
    bundles = [bundle for bundle in bundles if library in bundle.libraries] or bundles
    types = {*HALF} if dtype in HALF else {dtype}
    typed = [bundle for bundle in bundles if not dtype or types & bundle.families[family]]
    near = [b for b in typed if device.architecture in {gpu(name).architecture for name in b.gpus}]
    return [*(near or (bundles if FAMILIES[family].tiled_kinds else typed))]


class ShippedFamilyModels(Mapping[str, FamilyModel]):
    """Family → its model: from the bundle of a GPU, and from other shipped bundles for the families that it lacks.

    A bundle is read when its model is first needed.
    """

    def __init__(self, family_models: Mapping[str, FamilyModel]) -> None:
        self._gpu_models = family_models
        others = (name for bundle in shipped() for name in bundle.families if name != DEFAULT_FAMILY)
        self._names = dict.fromkeys([*family_models, *others])  # convolutions come from the GPU's own bundle only

    def family_model(self, family: str, settings: Mapping[str, str], gpu_name: str) -> FamilyModel:
        """Return the model for problems of these settings on a GPU. Raises `KeyError` if no bundle has the family."""
        if family in self._gpu_models or family not in self._names:
            return self._gpu_models[family]
        return _cached_bundle(_covering(family, settings, gpu_name).path).family_models[family]

    def __getitem__(self, family: str) -> FamilyModel:
        return self.family_model(family, {}, "")

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@dataclass(frozen=True, repr=False)
class ShippedBundle(Bundle):
    """A bundle extended by the families of the other shipped bundles. Several bundles may have the same family."""

    family_models: ShippedFamilyModels

    def has_measured(self, gpu: str) -> bool:
        return any(gpu in bundle.gpus for bundle in shipped())

    def operator_times(self, gpu: str) -> KernelFunction:
        predictor, device = _cached_operators(gpu, environ.get(ENVIRONMENT_VARIABLE, "")), _registered_gpu(gpu)
        return lambda problems: [within_peaks(each, device) for each in predictor.kernel_times(problems, keep=False)]

    def family_model(
        self, family: Family, gpu: str = "", values: tuple[str, ...] = (), library: str | None = None
    ) -> FamilyModel:
        if family.name == DEFAULT_FAMILY and family.name not in self.family_models:
            bundle_for(_registered_gpu(gpu), library)  # raises the error of the GPU and the library
        if family.name in self.family_models or not isinstance(family, OperatorFamily):
            return super().family_model(family, gpu, values, library)
        domain = Domain(family, frozenset(), frozenset(), frozenset())
        return FamilyModel(family, StoredModel("", {}, {}), Support({}, {}), Widths({ALL: 0.0}), domain)

    @property
    def libraries(self) -> frozenset[str]:
        """The libraries of all shipped bundles."""
        return super().libraries.union(*(bundle.libraries for bundle in shipped()))

    def _family_model_for(self, name: str, settings: Mapping[str, str], gpu: str) -> FamilyModel:
        return self.family_models.family_model(name, settings, gpu)

    def default_math(self, family: Family, dtype: str, device: Gpu) -> str:
        return family.default_math(dtype, device)

    def origin_of(self, family_model: FamilyModel) -> tuple[str, Bundle]:
        for each in shipped():
            bundle = _cached_bundle(each.path)
            model = bundle.family_models.get(family_model.family.name)
            if model is not None and model.fitted is family_model.fitted:
                return each.path.name, bundle
        return "", Bundle({}, card={"data": {"name": "no measurements"}})

    def fastest_model(self, family: Family, device: Gpu) -> FamilyModel | None:
        for bundle in shipped():
            architectures = {gpu(name).architecture for name in bundle.gpus}
            if bundle.is_fastest and family.name in bundle.families and device.architecture in architectures:
                return _cached_bundle(bundle.path).family_models[family.name]
        return None


def _joined(bundle: Bundle) -> ShippedBundle:
    """Return the bundle extended by the families of the other shipped bundles."""
    costs = bundle.call_costs or {key: cost for other in shipped() for key, cost in other.call_costs.items()}
    family_models = ShippedFamilyModels(bundle.family_models)
    return ShippedBundle(family_models, bundle.candidate, call_costs=costs, devices=bundle.devices, card=bundle.card)


@lru_cache(maxsize=16)
def _cached_bundle(path: Path) -> Bundle:
    """Return a bundle. Tiled products on other boards have the errors of their analytical model, which more boards
    show."""
    bundle, products = load_bundle(path), shipped_product_models()
    errors = UnmeasuredGpuErrors(products.by_kind)
    models = {
        name: replace(each, unmeasured_gpu=errors)
        if each.family.tiled_kinds and {*each.domain.gpus} <= {*products.fitted_on}
        else each
        for name, each in bundle.family_models.items()
    }
    return replace(bundle, family_models=models)


def load_operators(name: str, library: str | None = None) -> Predictor:
    """Return a predictor of all operators but convolutions on a GPU by name, from the shipped bundles.

    An operator that no bundle covers gets its roofline time. ``library`` limits the kernels to one framework. Raises
    `InputError` for an unknown GPU or library.
    """
    return Predictor(_joined(Bundle({})), gpu=_registered_gpu(name).name, library=library)


@lru_cache(maxsize=8)
def _cached_operators(name: str, user_gpus: str) -> Predictor:
    """Return `load_operators` for all settings without candidates; ``user_gpus`` as in `_cached_predictor`."""
    return load_operators(name)


def _registered_gpu(name: str) -> Gpu:
    """Return the registered GPU of that name; the error also mentions bundle folders."""
    try:
        return gpu(name)
    except InputError as error:
        raise InputError(f"{error}; and no bundle folder has that name") from None


@lru_cache(maxsize=8)
def _cached_predictor(name: str, library: str | None, user_gpus: str) -> Predictor:
    """Return a loaded predictor. ``user_gpus`` is part of the cache key, because the user's file adds GPUs."""
    return load(name, library=library)


def predict(
    problem: object, *, gpu: str, library: str | None = None, **options: Any
) -> Prediction | Answers[Prediction] | Predictions:
    """Predict times with the bundle of a GPU, which is loaded once.

    Parameters
    ----------
    problem
        A problem, its text, a list of them, or a table, as in `Predictor.predict`.
    gpu
        Name of the GPU whose shipped bundle is used, or the path of a bundle.
    library
        Library to predict for; None means all libraries.
    **options
        ``algorithm``, the name of the candidate (None means the fastest one), ``library_version`` (None means the
        newest one), and settings of the problem, such as ``dtype`` or ``math``.

    Returns
    -------
    Prediction, Answers of Prediction, or Predictions
        For a problem, a list, or a table.

    Raises
    ------
    InputError
        If the problem, the GPU or the bundle cannot be read, or if no candidate is feasible.
    """
    predictor = _cached_predictor(gpu, library, environ.get(ENVIRONMENT_VARIABLE, ""))
    return predictor.predict(problem, **options)


def select(problem: object, *, gpu: str, library: str | None = None, **limits: Any) -> Any:
    """Rank the candidates of a problem with the bundle of a GPU, which is loaded once.

    Parameters
    ----------
    problem
        A problem, its text, a list of them, or a table, as in `Predictor.select`.
    gpu
        Name of the GPU whose shipped bundle is used, or the path of a bundle.
    library
        Library whose candidates compete; None means all of them.
    **limits
        ``workspace_limit``, ``deterministic``, ``top``, ``library_version`` and settings, as in `Predictor.select`.

    Returns
    -------
    Selection or Answers of Selection
        The ranked candidates.

    Raises
    ------
    InputError
        If the problem, the GPU, the bundle or a limit cannot be read.
    """
    return _cached_predictor(gpu, library, environ.get(ENVIRONMENT_VARIABLE, "")).select(problem, **limits)
