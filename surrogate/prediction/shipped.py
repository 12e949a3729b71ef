"""Bundles that ship with the package, found by the GPU they serve; and `load`, `predict`, `select` by a GPU's name."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from math import exp
from os import environ
from pathlib import Path
from typing import Any

from surrogate import bundled
from surrogate.bundle.bundle import INDEX, Bundle, FamilyModel, stored_index
from surrogate.bundle.bundle import load as load_bundle
from surrogate.features.algorithms import VENDOR_LIBRARIES
from surrogate.features.errors import InputError
from surrogate.features.families import DEFAULT_FAMILY, FAMILIES, AnyProblem, family_of
from surrogate.features.gpu import ENVIRONMENT_VARIABLE, Gpu, canonical, gpu, uncapped
from surrogate.models.launch import CallCost, CallKey
from surrogate.prediction.predictor import Predictor
from surrogate.prediction.results import DATASHEET, MODEL, Prediction, Predictions
from surrogate.prediction.sources.datasheet import shipped_product_models
from surrogate.uncertainty.intervals import UnseenGpu

ENOUGH_ROWS = 1000
"""Of one of AMD's boards: fewer are one benchmark's, which foretells other products worse than it claims."""
AMD = frozenset({"amd"})


@dataclass(frozen=True, slots=True)
class Shipped:
    """One folder: the registry names of the GPUs it was fitted on, their vendors, its libraries, families and size."""

    path: Path
    families: Mapping[str, frozenset[str]]
    """Family → the element types that it was measured with."""
    gpus: frozenset[str]
    vendors: frozenset[str]
    libraries: frozenset[str]
    rows: int
    launches: Mapping[CallKey, CallCost]
    held_out: Mapping[str, Any]
    unseen: Mapping[str, UnseenGpu]

    def evidence(self, family: str, gpu_name: str) -> dict[str, object]:
        """What the bundle knows of a family on a GPU: rows measured there, and how far off times are expected to be.

        ``median_ape`` |predicted / measured − 1| on held-out shapes of all its GPUs, ``factor_90`` what nine in ten
        times are off by at most on this one; where it was never measured (``source`` datasheet) both are of
        GPUs left out.
        ``dtypes`` are the element types measured there, which alone the figures are of.
        """
        known, unseen = self.held_out[family], self.unseen[family]
        # Boards like those that the law of matrix products was fitted to are answered by it.
        by_law = shipped_product_models() if self.gpus <= {*shipped_product_models().fitted_on} else None
        unseen = by_law.by_kind[""] if by_law else unseen.by_kind[unseen.kind(gpu(gpu_name).line, "")]
        interval = next((row for row in known["intervals"] if row.get("gpu") == gpu_name), None)
        return {
            "bundle": self.path.name,
            "rows": interval["rows"] if interval else 0,
            "dtypes": _load(self.path).parts[family].domain.dtypes(gpu_name),
            "source": MODEL if interval else DATASHEET,
            "median_ape": known["time"]["median_ape"] if interval else unseen.median_ape,
            "factor_90": interval["interval_factor"] if interval else exp(unseen.half_width),
        }


@cache
def shipped() -> tuple[Shipped, ...]:
    """All bundles that ship with the package, in the order of their names."""
    bundles = []
    for file in sorted(bundled.FOLDER.glob(f"*/{INDEX}")):
        index = stored_index(file.parent)[1]
        data = index.card["data"]
        bundles.append(
            Shipped(
                path=file.parent,
                families={
                    name: frozenset(data.get("families", {}).get(name, {}).get("dtype", ())) for name in index.parts
                },
                gpus=frozenset(canonical(name) for name in data["gpus"]),
                vendors=frozenset(gpu(name).vendor for name in data["gpus"]),
                libraries=frozenset(text.partition(" ")[0] for text in data["libraries"]),
                rows=data.get("ok_rows", 0),
                launches=index.launches,
                held_out=index.card.get("held_out", {}),
                unseen={name: part.unseen_gpu for name, part in index.parts.items()},
            )
        )
    return tuple(bundles)


def bundle_for(device: Gpu, library: str | None = None) -> Path:
    """The shipped bundle fitted on this GPU with most rows, else the vendor's that was fitted on most GPUs.

    Raises `InputError` where none serves the GPU or the library.
    """
    known = tuple(bundle for bundle in shipped() if DEFAULT_FAMILY in bundle.families)
    fitting = [b for b in known if library is None or library in b.libraries]
    wanted_library = VENDOR_LIBRARIES.get(device.vendor) if library is None else library
    own = [b for b in fitting if device.name in b.gpus]
    serving = own or [b for b in fitting if device.vendor in b.vendors and wanted_library in b.libraries]
    if serving:
        return max(serving, key=lambda b: (device.name in b.gpus or len(b.gpus), b.rows, b.path.name)).path
    wanted = f"{device.name} with {library}" if library else device.name
    listed = sorted({name for b in known for name in b.gpus})
    raise InputError(
        f"no bundle for {wanted} ships with the package; "
        + (f"shipped: {', '.join(listed)}; " if listed else "none ships with this installation; ")
        + "train one with `seer train DATA -o BUNDLE` and give its path"
    )


def answering(device: Gpu) -> dict[str, Shipped]:
    """Family → the shipped bundle that answers for it on a GPU."""
    answers = {name: _serving(name, {}, device.name) for bundle in shipped() for name in bundle.families}
    answers.pop(DEFAULT_FAMILY, None)
    try:
        path = bundle_for(device)
    except InputError:
        return answers
    serving = next(bundle for bundle in shipped() if bundle.path == path)
    return dict.fromkeys(serving.families, serving) | {k: v for k, v in answers.items() if k not in serving.families}


def is_path(text: str | Path) -> bool:
    """True for a `Path`, for text with a separator, and for the name of a folder that holds a bundle."""
    return isinstance(text, Path) or "/" in text or "\\" in text or (Path(text) / "bundle.json").is_file()


def bundle_path(text: str | Path, problem: AnyProblem | None = None) -> Path:
    """The folder that a path or a GPU's name means; what exists is a path, whatever else its name may be.

    Of a GPU's bundles it is that of convolutions, or the one that answers ``problem``. Raises `InputError` where there
    is neither such a folder nor such a GPU.
    """
    if is_path(text) or Path(text).exists():
        return Path(text)
    try:
        device = gpu(str(text))
    except InputError as error:
        raise InputError(
            f"{text}: no bundle there (no bundle.json; `seer train` makes one), and no GPU whose bundle ships: {error}"
        ) from None
    family = family_of(problem).name if problem else DEFAULT_FAMILY
    if family != DEFAULT_FAMILY and any(family in bundle.families for bundle in shipped()):
        named = {"operator": getattr(problem, "kind", ""), "dtype": getattr(problem, "dtype", "")}
        return _serving(family, named, device.name).path
    return bundle_for(device)


def as_bundle(bundle: object) -> Bundle:
    """The bundle that a caller means: itself, a predictor's, the one in a folder, or the one that ships for a GPU."""
    if isinstance(bundle, str | Path):
        return load_bundle(bundle_path(bundle))
    bundle = bundle.bundle if isinstance(bundle, Predictor) else bundle
    if not isinstance(bundle, Bundle):
        raise InputError(f"a {type(bundle).__name__} is no bundle; give a Bundle, its folder, or a GPU's name")
    return bundle


def load(gpu_or_path: object, *, gpu: str | None = None, library: str | None = None) -> Predictor:
    """A predictor for a GPU (its name or a `Gpu`), from the bundle that ships for it; or from a `Bundle` or its folder.

    A GPU that no shipped bundle was fitted on is answered by its vendor's from its specification, with wider intervals
    and ``source`` ``datasheet``. ``gpu`` says which one is asked about where a path is given; ``library`` narrows the
    candidates. Raises `InputError` for an unknown or ambiguous GPU, or a bad bundle.
    """
    name = gpu_or_path.name if isinstance(gpu_or_path, Gpu) else gpu_or_path
    if not isinstance(name, str) or is_path(name):
        return Predictor(as_bundle(name), gpu=gpu, library=library)
    if gpu is not None:
        raise InputError(f"a GPU is named twice, {name!r} and {gpu!r}; gpu= goes with a bundle's path")
    device = _found(name)
    try:
        bundle = _load(bundle_for(device, library))
    except InputError:  # a GPU or a library of which other kernels than convolutions were measured
        others = [known for known in shipped() if DEFAULT_FAMILY not in known.families]
        if not any(library in b.libraries if library else device.name in b.gpus for b in others):
            raise
        bundle = Bundle({})
    return Predictor(_joined(bundle), gpu=name, library=library)


def _serving(family: str, named: Mapping[str, str], gpu_name: str) -> Shipped:
    """Of the shipped bundles with a family: one measured with the type on the GPU, else with the type, else any; where
    neither operator nor type is ``named``, one measured on the GPU.

    One of AMD's boards alone answers for these, and of the kinds that a law carries to others of them, unless another
    measured the kind and type on the GPU on `ENOUGH_ROWS`; for other vendors it never does.
    """
    bundles = [bundle for bundle in shipped() if family in bundle.families]
    own = [bundle for bundle in bundles if bundle.vendors == AMD]
    bundles = [bundle for bundle in bundles if bundle not in own]
    dtype, kind = named.get("dtype", ""), named.get("operator", "")
    is_tiled = kind in FAMILIES[family].tiled_kinds or not kind
    if own and is_tiled and gpu_name and {gpu(gpu_name).vendor} == AMD:
        parts = [_load(bundle.path).parts[family] for bundle in bundles if gpu_name in bundle.gpus]
        settings = [key for part in parts for key in part.domain.settings if key.gpu == gpu_name]
        rows = sum(count for part in parts for key, count in part.row_counts.items() if key.gpu == gpu_name)
        is_measured = not kind or any(key.values[:2] == (kind, dtype) for key in settings)
        if rows < ENOUGH_ROWS or not is_measured:
            return own[-1]
    measured = [bundle for bundle in bundles if gpu_name in bundle.gpus]
    like = [[b for b in some if dtype in b.families[family]] for some in (measured, bundles)]
    return next(some for some in (*like, measured if not dtype else [], bundles) if some)[-1]


class ShippedParts(Mapping[str, FamilyModel]):
    """Family → its part: those of the bundle that serves a GPU, and of other shipped bundles for the families it lacks.

    A bundle is read when its part is first asked for.
    """

    def __init__(self, parts: Mapping[str, FamilyModel]) -> None:
        self._parts = parts
        others = (name for bundle in shipped() for name in bundle.families if name != DEFAULT_FAMILY)
        self._names = dict.fromkeys([*parts, *others])  # convolutions are answered for the bundle's own GPUs alone

    def part(self, family: str, named: Mapping[str, str], gpu_name: str) -> FamilyModel:
        """The part for problems of these settings on a GPU. Raises `KeyError` for a family that none has."""
        if family in self._parts or family not in self._names:
            return self._parts[family]
        return _load(_serving(family, named, gpu_name).path).parts[family]

    def __getitem__(self, family: str) -> FamilyModel:
        return self.part(family, {}, "")

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@dataclass(frozen=True, repr=False)
class ShippedBundle(Bundle):
    """A bundle with the families of the others that ship, of which several may know the same one."""

    parts: ShippedParts

    def _part_for(self, name: str, named: Mapping[str, str], gpu: str) -> FamilyModel:
        return self.parts.part(name, named, gpu)


def _joined(bundle: Bundle) -> ShippedBundle:
    """The bundle with the families of the others that ship."""
    launches = bundle.launches or {key: launch for other in shipped() for key, launch in other.launches.items()}
    parts = ShippedParts(bundle.parts)
    return ShippedBundle(parts, bundle.candidate, launches=launches, devices=bundle.devices, card=bundle.card)


@lru_cache(maxsize=16)
def _load(folder: Path) -> Bundle:
    return load_bundle(folder)


def load_operators(name: str, library: str | None = None) -> Predictor:
    """A predictor of everything but convolutions on a GPU by name, by what ships; rooflines alone where nothing does.

    ``library`` narrows the kernels to one framework's. A GPU that was never measured is taken as if its tensor units
    were not held down; the caller sees to it that no time is shorter than its own peak allows. Raises `InputError` for
    an unknown GPU or library.
    """
    device = _found(name)
    devices = {device.name: uncapped(device)} if all(device.name not in b.gpus for b in shipped()) else {}
    return Predictor(_joined(Bundle({}, devices=devices)), gpu=device.name, library=library)


def _found(name: str) -> Gpu:
    """The registry's GPU of that name; the error also says that a folder may be given."""
    try:
        return gpu(name)
    except InputError as error:
        raise InputError(f"{error}; and there is no bundle folder of that name") from None


@lru_cache(maxsize=16)
def _loaded(name: str, library: str | None, user_gpus: str) -> Predictor:
    """``user_gpus`` is part of the key: the user's file adds GPUs."""
    return load(name, library=library)


def predict(
    problem: object,
    *,
    gpu: str,
    algorithm: str | None = None,
    library: str | None = None,
    library_version: str | None = None,
    **settings: str,
) -> Prediction | list[Prediction] | Predictions:
    """`Predictor.predict` of the bundle that ships for ``gpu`` (or lies at that path), loaded once."""
    predictor = _loaded(gpu, library, environ.get(ENVIRONMENT_VARIABLE, ""))
    return predictor.predict(problem, algorithm, library_version=library_version, **settings)


def select(problem: object, *, gpu: str, library: str | None = None, **limits: Any) -> Any:
    """`Predictor.select` of the bundle that ships for ``gpu`` (or lies at that path), loaded once."""
    return _loaded(gpu, library, environ.get(ENVIRONMENT_VARIABLE, "")).select(problem, **limits)
