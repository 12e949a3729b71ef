"""From a bundle to `Site`: which candidates there are, which engine answers, which library version is meant."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from surrogate.features.algorithms import algorithms
from surrogate.features.errors import InputError, nearest
from surrogate.features.gpu import Gpu, canonical, gpu
from surrogate.features.problem import SIZE_COLUMNS
from surrogate.prediction.backend import Backend
from surrogate.prediction.engine import TableEngine
from surrogate.prediction.hot import hot_setting
from surrogate.prediction.setting import Candidate, Place, Setting
from surrogate.prediction.site import Site
from surrogate.prediction.verdicts import Verdicts

if TYPE_CHECKING:
    from surrogate.bundle.bundle import Bundle


@dataclass(frozen=True, slots=True)
class Sites:
    """The sites of one bundle, each made when it is first asked for."""

    bundle: "Bundle"
    backend: Backend
    _made: dict[Setting, Site] = field(default_factory=dict, repr=False, compare=False)
    _newest: dict[tuple[str, str], str] = field(default_factory=dict, repr=False, compare=False)
    _lock: Any = field(default_factory=threading.Lock, repr=False, compare=False)

    def site(self, setting: Setting, place: Place) -> Site:
        """The site of a setting on a device."""
        found = self._made.get(setting)
        if found is None:
            with self._lock:
                found = self._made.get(setting) or self._make(setting, place)
                self._made[setting] = found
        return found

    def place(self, name: str) -> Place:
        """A device by any name. Raises `InputError` for one that neither the bundle nor the registry knows."""
        key = canonical(name)
        device = self.bundle.devices.get(name) or self.bundle.devices.get(key) or gpu(name)
        return Place(device, key, key in self.bundle.fitted_gpus)

    def library(self, gpu_name: str, wanted: str | None) -> str:
        """The library meant on a GPU. Raises `InputError` where the bundle does not know it, or knows several."""
        settings = [text.split("|")[:2] for text in self.bundle.domain.settings]
        everywhere = sorted({library for _, library in settings})
        here = sorted({library for name, library in settings if name == gpu_name}) or everywhere
        if wanted is None and len(here) == 1:
            return here[0]
        if wanted is None:
            raise InputError(f"the bundle knows several libraries on {gpu_name}: {', '.join(here)}; name one")
        if wanted not in everywhere:
            raise InputError(
                f"library {wanted!r} is not in the bundle; known: {', '.join(everywhere)}{nearest(wanted, everywhere)}"
            )
        return wanted

    def newest_version(self, gpu_name: str, library: str) -> str:
        """The newest version that was measured on the GPU, else anywhere; "" where none is known."""
        key = (gpu_name, library)
        if key not in self._newest:
            self._newest[key] = self._newest_version(gpu_name, library)
        return self._newest[key]

    def _newest_version(self, gpu_name: str, library: str) -> str:
        from surrogate.dataset.problems import version_number

        here = {
            parts[2]
            for key in self.bundle.support.exact
            if key.startswith(f"{library}|") and (parts := key.rsplit("|", 2))[1] == gpu_name
        }
        anywhere = {
            text.partition("|")[2] for text in self.bundle.domain.versions if text.startswith(f"{library}|")
        }
        return max(here or anywhere, key=lambda v: (version_number(v), v), default="")

    def _make(self, setting: Setting, place: Place) -> Site:
        candidates, unmeasured = candidates_of(setting, self._codes(setting))
        if not candidates:
            raise InputError(
                f"the bundle holds no {setting.library} {setting.direction} algorithm; train one that does"
            )
        bundle, device = self.bundle, place.device
        known = candidates + unmeasured
        if self.backend.parts is None:
            engine: Any = TableEngine(bundle.model, setting, device, known)
        else:
            hot = hot_setting(self.backend.parts, setting, device, known, context_of(setting, device))
            engine = self.backend.accelerate(hot)
        from surrogate.models.roofline import Roofline

        return Site(
            setting,
            known,
            len(candidates),
            engine,
            TableEngine(Roofline(), setting, device, known),
            Verdicts(setting, known, bundle.support, place.name if canonical_known(place.name) else ""),
            bundle.widths,
            bundle.domain,
            "model" if place.fitted else "spec",
            1.0 if place.fitted else bundle.unseen_gpu_factor,
        )

    def _codes(self, setting: Setting) -> dict[tuple[str, str], float]:
        """(algorithm, solver) → code of everything that the model can choose among in a setting."""
        start = f"{setting.library}|{setting.direction}|"
        codes: Mapping[str, float] = (
            self.backend.parts.codes if self.backend.parts else getattr(self.bundle.model, "_candidates", {})
        )
        names = [name.removeprefix(start) for name in codes if name.startswith(start)]
        if not names:
            names = [
                text.rsplit("|", 1)[1]
                for text in self.bundle.domain.settings
                if text.split("|")[1:3] == [setting.library, setting.direction]
            ]
        pairs = {name: (name.partition("|")[0], name.partition("|")[2]) for name in sorted(set(names))}
        return {pair: float(codes.get(start + name, float("nan"))) for name, pair in pairs.items()}


def candidates_of(
    setting: Setting, codes: Mapping[tuple[str, str], float]
) -> tuple[tuple[Candidate, ...], tuple[Candidate, ...]]:
    """Those that can be chosen, in the registry's order, and the registry's algorithms that were never measured."""
    registry = algorithms(setting.library, setting.direction)
    order = {one.name: place for place, one in enumerate(registry)}
    pairs = sorted(codes, key=lambda pair: (order.get(pair[0], len(order)), pair))
    s = setting
    chosen = tuple(Candidate.of(s.library, s.direction, *pair, codes[pair]) for pair in pairs)
    known = {name for name, _ in codes}
    rest = tuple(
        Candidate.of(s.library, s.direction, one.name, "", float("nan"))
        for one in registry
        if one.name not in known
    )
    return chosen, rest


def context_of(setting: Setting, device: Gpu) -> dict[str, float]:
    """The columns of `surrogate.dataset.rows.CONTEXT_NAMES`, which no problem changes."""
    import pandas as pd

    from surrogate.dataset.rows import CONTEXT_NAMES, rows_of

    sizes = dict.fromkeys(SIZE_COLUMNS, 1) | {"pad_h": 0, "pad_w": 0}
    row = {name: getattr(setting, name) for name in setting.__slots__}
    algorithm = algorithms(setting.library, setting.direction)[0].name
    rows = rows_of(pd.DataFrame([{**row, **sizes, "algorithm": algorithm}]), {setting.gpu: device})
    return {name: float(rows.column(name)[0]) for name in CONTEXT_NAMES}


def canonical_known(name: str) -> bool:
    """True where the registry has a GPU of that name."""
    try:
        return gpu(name).name == name
    except InputError:
        return False
