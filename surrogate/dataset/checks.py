"""Normalise a raw table (spellings, types, defaults), and check each row by the rules of a dataset."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd

from surrogate.dataset import columns
from surrogate.dataset.described import guessed_columns
from surrogate.dataset.problem_list import FAMILY_COLUMNS, expand_problems, required
from surrogate.dataset.problems import families_of, family_rows, row_groups
from surrogate.dataset.rows import rows_of
from surrogate.features.algorithms import VENDOR_LIBRARIES
from surrogate.features.elementwise import MAX_EXACT, MAX_INT32, checked_int
from surrogate.features.errors import InputError, RowError, UnknownGpuError
from surrogate.features.families import DEFAULT_FAMILY, FAMILIES, DescribedFamily, Family
from surrogate.features.family import DEFAULT_ALGORITHM
from surrogate.features.gpu import Gpu, gpu, unlisted_gpu
from surrogate.features.problem import setting

MAX_SIZE_PRODUCT = 2.0**58
"""Upper limit of the product of a problem's sizes, so that features computed in int64 cannot overflow."""
REPEATED = "an earlier row is equal; one row per key"
"""Rule that repeated measurements break."""
TINY_CALL_US = 5.0
"""Time of a call with a tiny problem: 3 to 10 µs on all measured GPUs."""
MIN_RATIO, MAX_RATIO = 0.1, 250.0
"""Limits of the median of time / (launch + roofline) of a GPU. Outside them the times seem to have a wrong unit.
Medians of the measured tables lie between 1.8 and 18; in ns they would be a thousand times as large."""
FASTEST_US = 1.0
"""No kernel on any GPU is faster: an empty kernel takes about twice as long."""
UNIT_SAMPLE = 2000
"""Number of rows per GPU, evenly spaced, for the check of the unit."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One violation of a rule: the row's position, the column, the value, and the rule."""

    row: int
    column: str
    value: object
    rule: str

    def __str__(self) -> str:
        return f"{self.column} is {self.value!r}; {self.rule}"


def normalise(frame: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return a copy with a family, int64 sizes, float64 numbers, text columns, and the dataset's spellings.

    `surrogate.dataset.problem_list` explains how a row states its problem. A table of measurements also needs ``gpu``
    and ``time_us``. A table of convolutions needs ``algorithm``; any other table needs ``library``. Other columns of a
    row's family have these defaults:

    - sizes and settings: the family's defaults; ``math``: PyTorch's default on the GPU,
    - ``library`` of convolutions: cuDNN or MIOpen, by the GPU's vendor; ``library_version``: "" (unknown),
    - ``status``: ok in rows with a time, failed in other rows.

    Unknown columns are kept. Raises `InputError` for a missing column, an unknown family or GPU, and a size that is no
    whole number.
    """
    out = _with_family(frame.reset_index(drop=True).copy(), name)
    if not len(out):
        return out
    families = families_of(out)
    _require_columns(out, families, name)
    for column in [column for column in columns.TEXT_COLUMNS if column in out and column.endswith("dtype")]:
        try:
            out[column] = _mapped(out[column], partial(setting, column), None)
        except InputError as error:
            raise InputError(f"{name}: {error}") from None
    _fill_facts(out, name)
    for family in families:
        _fill_defaults(out, family, name)
    for column in columns.SIZE_COLUMNS:
        if column in out:
            if len(families) > 1:  # a size is 0 if the row's family does not have it
                with_size = [family.name for family in families if column in family.size_names]
                out.loc[~out[columns.FAMILY_COLUMN].isin(with_size), column] = 0
            out[column] = _int_sizes(out[column], column, name)
    for column in [column for column in columns.NUMBER_COLUMNS if column in out]:
        out[column] = columns.numbers(out[column], column, name)
    for column in [column for column in columns.TEXT_COLUMNS if column in out]:
        out[column] = _mapped(out[column], str, None)
    if "layout" in out:
        out["layout"] = out["layout"].replace(columns.LAYOUT_ALIASES)
    return out


def _with_family(table: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return the table with each row's family, and with the sizes and settings in texts of problems."""
    if table.columns.intersection(["problem", *FAMILY_COLUMNS]).empty:
        _refuse_undescribed_kernel(table, name)
    expanded = expand_problems(table.rename(columns=str), None, name, {})
    has_operators = "operator" in table or any("operator" in each.setting_names for each in families_of(expanded))
    return expanded if has_operators else expanded.drop(columns="operator", errors="ignore")


def _refuse_undescribed_kernel(table: pd.DataFrame, name: str) -> None:
    """Raise `InputError` if a table seems to hold configurations of the user's own kernel without a description."""
    sizes, parameters = guessed_columns(table)
    if "algorithm" in table or not parameters:
        return
    raise InputError(
        f"{name}: the kernel of columns {', '.join(map(str, table))} is unknown; for your own kernel give `seer train`"
        f" the columns, --sizes {','.join(sizes) or '…'} --parameters {','.join(parameters)}, or a description,"
        " --kernel FILE; a table of convolutions needs a column algorithm"
    )


def _mapped(values: pd.Series, function: Callable[[object], str], absent: str | None) -> pd.Series:
    """Return ``function`` of each value, called once for equal values; ``absent`` for missing values."""
    code, distinct = pd.factorize(values)
    return pd.Series(np.array([*map(function, distinct), absent], dtype=object)[code], index=values.index, dtype=object)


def _require_columns(frame: pd.DataFrame, families: tuple[Family, ...], name: str) -> None:
    """Raise `InputError` with all missing columns, and the present column with the most similar name."""
    needed = ["gpu"]
    for family in families:
        needed += [*required(family), "algorithm" if family.name == DEFAULT_FAMILY else "library"]
    missing = [column for column in dict.fromkeys([*needed, "time_us"]) if column not in frame]
    if missing:
        hint = columns.absent_hint(missing[0], [*map(str, frame)])
        remedy = f"`seer data columns --table dataset` explains each{hint}"
        raise InputError(f"{name}: column{'s' if len(missing) > 1 else ''} {', '.join(missing)} missing; {remedy}")


def _fill_facts(out: pd.DataFrame, name: str) -> None:
    """Add missing columns of the measurement: library, its version and status."""
    if "library" not in out:
        out["library"] = _mapped(out["gpu"], lambda gpu_name: VENDOR_LIBRARIES[_device(gpu_name, name).vendor], "")
    if "library_version" not in out:
        out["library_version"] = ""
    if "status" not in out:
        out["status"] = np.where(columns.numbers(out["time_us"], "time_us", name).notna(), "ok", "failed")


def _fill_defaults(out: pd.DataFrame, family: Family, name: str) -> None:
    """Add columns of the family that the table lacks, and fill them if they are empty in the family's rows."""
    rows = family_rows(out, family)
    for size in family.sizes:
        if size.name not in out:
            default = out[size.default] if isinstance(size.default, str) else size.default or 0
            out[size.name] = np.where(rows, default, 0)
        elif family.name != DEFAULT_FAMILY and isinstance(size.default, int):
            absent = rows & (out[size.name].isna() | (size.minimum > 0) & (out[size.name] == 0)).to_numpy()
            if absent.any():
                out.loc[absent, size.name] = size.default
    if "math" in family.setting_names and "math" not in out:
        _fill_math(out, family, rows, name)
    for column, default in {**family.setting_defaults, "algorithm": DEFAULT_ALGORITHM}.items():
        if column not in out:
            out[column] = ""
            out.loc[rows, column] = default
        elif family.name != DEFAULT_FAMILY:
            empty = rows & (out[column].isna() | (out[column] == "")).to_numpy()
            if empty.any():
                out[column] = out[column].astype(object)  # pandas reads an empty column of a CSV file as numbers
                out.loc[empty, column] = default


def _fill_math(out: pd.DataFrame, family: Family, rows: np.ndarray, name: str) -> None:
    """Add PyTorch's default math on each row's GPU; a query without math has the same default."""
    dtype = out["dtype"] if "dtype" in out else pd.Series(family.setting_defaults["dtype"], index=out.index)
    out["math"] = ""
    for (gpu_name, kind), positions in row_groups(out.assign(dtype=dtype)[rows], ("gpu", "dtype")):
        out.loc[np.flatnonzero(rows)[positions], "math"] = family.default_math(kind, _device(gpu_name, name))


def _device(gpu_name: object, name: str) -> Gpu:
    """Return the registry's GPU. An error begins with the table's ``name``."""
    try:
        return gpu(str(gpu_name))
    except InputError as error:
        raise InputError(f"{name}: {error}") from None


def _int_sizes(values: pd.Series, column: str, name: str) -> pd.Series:
    """Return sizes as int64, so that products cannot overflow."""
    if values.dtype.kind in "iu":
        return values.astype(np.int64)
    numbers = columns.numbers(values, column, name).to_numpy()
    return pd.Series(checked_int(name, column, numbers, minimum=-MAX_EXACT), index=values.index)


def find_violations(frame: pd.DataFrame, described_family: Family | None = None) -> list[Violation]:
    """Return every violation in a normalised frame, in the order of rows; ``described_family`` as in `families_of`."""
    rules = _rules(frame, described_family)
    broken = [(row, column, rule) for column, mask, rule in rules for row in np.flatnonzero(mask).tolist()]
    violations = [Violation(row, column, frame[column].iloc[[row]].tolist()[0], rule) for row, column, rule in broken]
    return sorted(violations, key=lambda violation: violation.row)


def _rules(frame: pd.DataFrame, described_family: Family | None) -> Iterator[tuple[str, np.ndarray, str]]:
    """Yield (column, mask of the rows that break the rule, the rule) for each rule."""
    for family in families_of(frame, described_family):
        yield from _family_rules(frame, family)
    for column in ("gpu", "library", "library_version", "algorithm"):
        empty = frame[column].isna().to_numpy()
        if column != "library_version":
            empty = empty | (frame[column] == "").to_numpy()
        yield column, empty, "a name is needed"
    yield "status", ~frame["status"].isin(columns.STATUSES).to_numpy(), f"known: {', '.join(columns.STATUSES)}"
    yield from _time_rules(frame)


def _family_rules(frame: pd.DataFrame, family: Family) -> Iterator[tuple[str, np.ndarray, str]]:
    in_family = family_rows(frame, family)
    sane = in_family.copy()
    for size in family.sizes:
        values = frame[size.name].to_numpy()
        outside = in_family & ((values < size.minimum) | (values > MAX_INT32))
        sane &= ~outside
        yield size.name, outside, f"it must be between {size.minimum} and {MAX_INT32}"
    for column, allowed in family.settings.items():
        if allowed:
            yield column, in_family & ~frame[column].isin(allowed).to_numpy(), f"known: {', '.join(allowed)}"
    with np.errstate(over="ignore"):
        sizes = [np.maximum(frame[name].to_numpy(dtype=float), 1) for name in family.counted_names]
        large = sane & (np.prod(sizes, axis=0) >= MAX_SIZE_PRODUCT)
    yield family.size_names[0], large, f"the product of the sizes must stay below {MAX_SIZE_PRODUCT:.1e}"
    arrays = {name: np.where(sane, frame[name].to_numpy(), 1) for name in family.size_names}
    for column, wrong, rule in family.misfits(arrays, frame["library"].to_numpy(dtype=object)):
        yield column, sane & ~large & wrong, rule
    key = [*family.row_key, *(["solver"] if "solver" in frame else [])]
    if not isinstance(family, DescribedFamily):  # repeats of a described kernel are merged by their median
        yield "algorithm", in_family & frame[key].duplicated().to_numpy(), REPEATED


def _time_rules(frame: pd.DataFrame) -> Iterator[tuple[str, np.ndarray, str]]:
    ok = (frame["status"] == "ok").to_numpy()
    time_us = frame["time_us"].to_numpy()
    with np.errstate(invalid="ignore"):
        wrong = ok & ~(np.isfinite(time_us) & (time_us > 0))
        yield "time_us", wrong, "a row with status ok needs a time above 0 µs; a failed row has no time"
        for column, breaks, rule in (
            ("time_us_min", lambda v: v > time_us, "the fastest repeat cannot exceed the median"),
            ("time_us_max", lambda v: v < time_us, "the slowest repeat cannot be below the median"),
            ("workspace_bytes", lambda v: v < 0, "it must be at least 0"),
        ):
            if column in frame:
                yield column, ok & breaks(frame[column].to_numpy()), rule


def check_formulas(frame: pd.DataFrame, family: DescribedFamily, name: str) -> None:
    """Raise `InputError` if a formula of a described kernel gives no finite number, or a condition excludes every row.

    The error begins with ``name``.
    """
    values = _formula_inputs(frame, family)
    for cost, formula in family.description.formulas.items():
        numbers = np.broadcast_to(formula.value(values), len(frame))
        wrong = ~np.isfinite(numbers) & np.isfinite(sum(values[each] for each in formula.names))
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            inputs = ", ".join(f"{each} {values[each][row]:g}" for each in sorted(formula.names))
            result = f"formula {cost}, {formula.text!r}, gives {numbers[row]} for {inputs}"
            raise RowError(name, row, f"{result}; a finite number is needed")
    for condition in family.description.conditions or ():
        if len(frame) and not np.any(np.nan_to_num(condition.value(values))):
            raise InputError(f"{name}: condition {condition.text!r} holds in no row, so no configuration is left")


def _formula_inputs(frame: pd.DataFrame, family: DescribedFamily) -> dict[str, np.ndarray]:
    """Return the sizes and parameters of a described kernel's rows by name, for its formulas."""
    parameters = family.configurations(frame["solver"].tolist())
    sizes = {name: frame[name].to_numpy(dtype=np.float64) for name in family.size_names}
    return {**sizes, **dict(zip(family.parameter_names, parameters.T, strict=True))}


def described_warnings(ok: pd.DataFrame, family: DescribedFamily, devices: Mapping[str, Gpu]) -> list[str]:
    """Return warnings for a described kernel's ok rows.

    There is a warning for unused columns, for each unknown GPU, for each GPU with times in a wrong unit or below the
    roofline, and for each condition that excludes rows that ran.
    """
    warnings = []
    names = (*family.size_names, *family.setting_names, *family.parameter_names)
    sizes, parameters = guessed_columns(ok.drop(columns=list(names), errors="ignore"))
    if unused := [name for name in (*sizes, *parameters) if ok[name].nunique() > 1]:
        remedy = "if times depend on them, name them as --settings, --sizes or --parameters"
        warnings.append(f"columns that are not used: {', '.join(unused)}; {remedy}")
    for (name, *settings), positions in row_groups(ok, ("gpu", *family.setting_names)):
        part = ok.iloc[positions]
        try:
            device = devices.get(name) or gpu(name)
        except UnknownGpuError as unknown:
            device = unlisted_gpu(name)
            warnings.append(str(unknown))
        sizes = {size: part[size].to_numpy() for size in family.size_names}
        problems = family.problem(sizes, dict(zip(family.setting_names, settings, strict=True)))
        for reason, is_over in family.over_limits(
            problems, family.configurations(part["solver"].tolist()), device
        ).items():
            if count := int(is_over.sum()):
                limit = reason.removeprefix("cannot run: ")
                warnings.append(f"{count:,} of {len(part):,} rows ran although {limit}; check the formula")
        ratio = part["time_us"].to_numpy() / np.maximum(family.min_us(problems, device), FASTEST_US)
        below = int((ratio < 1).sum())
        if below:
            unit = "s" if np.median(ratio) < 1e-3 else "ms"
            or_large = ", or are flops or bytes too large" if family.description.formulas else ""
            remedy = f"are these {unit}{or_large}?" if below > len(ratio) / 2 else "look at flops and bytes, too"
            limit = f"{FASTEST_US:g} µs or the time at the GPU's peaks, down to {ratio.min():.1g} of this limit"
            counts = f"{below:,} of {len(ratio):,} times are below {limit}"
            warnings.append(f"{name}: {counts}; time_us is in µs, {remedy}")
    values = _formula_inputs(ok, family)
    for condition in family.description.conditions or ():
        out = int((np.nan_to_num(np.broadcast_to(condition.value(values), len(ok))) == 0).sum())
        if out:
            excluded = f"condition {condition.text!r} excludes {out:,} of {len(ok):,} rows that ran"
            warnings.append(f"{excluded}; their configurations will not be chosen")
    return list(dict.fromkeys(warnings))


def unit_warnings(
    frame: pd.DataFrame, devices: Mapping[str, Gpu] = {}, described_family: DescribedFamily | None = None
) -> list[str]:
    """Return a warning for each GPU of a checked frame with times that seem to have a wrong unit.

    Unknown GPUs are skipped. For a ``described_family``, return its `described_warnings`.
    """
    ok = frame[(frame["status"] == "ok").to_numpy() & np.isfinite(frame["time_us"].to_numpy())]
    if described_family is not None:
        return described_warnings(ok, described_family, devices)
    warnings = []
    for (name, family), part in ok.groupby(["gpu", columns.FAMILY_COLUMN], sort=False):
        sample = part.iloc[:: max(1, len(part) // UNIT_SAMPLE)].drop(columns="solver", errors="ignore")
        try:
            rows = rows_of(sample, FAMILIES[str(family)], devices)
        except InputError:
            continue
        ratio = float(np.median(rows.time_us / (TINY_CALL_US + rows.roofline_us)))
        if not MIN_RATIO <= ratio <= MAX_RATIO:
            # The most likely unit: a ratio above 1 means nanoseconds, a very small ratio seconds, else milliseconds.
            likely = "ns" if ratio > 1 else "s" if ratio < 1e-4 else "ms"
            side = f"exceed {ratio:,.0f} times" if ratio > 1 else f"are below {ratio:.2g} of"
            found = f"half of the times {side} launch and roofline"
            warnings.append(f"{name}: {found}; time_us is in µs, are these {likely}?")
    return warnings
