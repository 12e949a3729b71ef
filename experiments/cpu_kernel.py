"""Measure a matrix product in OpenCL on this CPU in every configuration. `experiments.cpu_choice` uses the table.

``python -m experiments.cpu_kernel -o FILE.parquet`` writes the table. Kernel Tuner compiles and times every
configuration of cpu_kernel.cl, a matrix product in OpenCL, on PoCL (``pip install pyopencl pocl-binary-distribution
kernel-tuner``). Run nothing else at the same time.

Each pass times everything once in its own random order. So a disturbance of the machine affects random rows, and the
median over passes removes it. Kernels run on one thread. With one thread per core, they would compete with the process
that waits for them. Compiled kernels are stored in FILE.pocl.
"""

import os
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
import pandas as pd
from tqdm import tqdm

from experiments.experiment import in_one_line
from surrogate.dataset.columns import SCHEMA_VERSION
from surrogate.dataset.files import require_writable
from surrogate.dataset.tables import write_table
from surrogate.features.description import Configuration, Description, read_description
from surrogate.features.errors import InputError

SOURCE = Path(__file__).with_suffix(".cl")
KERNEL = read_description(SOURCE.with_suffix(".toml"))
FUNCTION = "matmul"
"""Name of the kernel in the source."""
POCL = "Portable Computing Language"
INSTALL = "pip install pyopencl pocl-binary-distribution kernel-tuner"
LAUNCHES = 3
"""Launches per configuration and pass. The minimum counts, because the first launch finds other data in the caches."""
SHAPES = 48
MIN_SIZE, MAX_SIZE, MIN_WORK, MAX_WORK = 16, 700, 1_500_000, 40_000_000
"""Bounds of m, n and k, and of their product."""


class Shape(NamedTuple):
    """A problem: ``c[m, n] = a[m, k] @ b[k, n]``."""

    m: int
    n: int
    k: int


RAGGED = (Shape(17, 19, 23), Shape(131, 150, 77))
"""Shapes for checks of the results: most tiles are larger than the first shape, and no tile divides the second."""


def drawn_shapes(count: int, seed: int = 0) -> list[Shape]:
    """Return distinct log-uniform shapes: a third multiples of 32, a third multiples of 8, a third arbitrary
    numbers."""
    random = np.random.default_rng(seed)
    shapes: dict[Shape, None] = {}
    while len(shapes) < count:
        step = (1, 8, 32)[len(shapes) % 3]
        sizes = np.exp(random.uniform(np.log(MIN_SIZE), np.log(MAX_SIZE), 3))
        shape = Shape(*(max(MIN_SIZE, step * round(size / step)) for size in sizes))
        if MIN_WORK <= shape.m * shape.n * shape.k <= MAX_WORK:
            shapes[shape] = None
    return list(shapes)


def configurations(description: Description) -> list[Configuration]:
    """Return all configurations that the conditions allow."""
    space = description.space() or {}
    return [dict(zip(space, values, strict=True)) for values in zip(*space.values(), strict=True)]


def reason_of(error: Exception) -> str:
    """Return the reason of a failure in one line: the first error of the compiler if there is one."""
    lines = str(error).splitlines() or [""]
    line = next((line for line in lines if "error:" in line), lines[0])
    return f"{type(error).__name__}: {line}"[:200]


class Bench:
    """Kernel Tuner's device on PoCL, and the compiled configurations. Raises `InputError` without PoCL.

    ``failures`` maps a configuration to its reason.
    """

    def __init__(self, space: Sequence[Configuration]) -> None:
        try:
            import pyopencl
            from kernel_tuner.core import DeviceInterface, KernelSource
        except ImportError as error:
            raise InputError(f"{error.name} is missing; {INSTALL}") from None
        try:
            platforms = [platform.name for platform in pyopencl.get_platforms()]
        except pyopencl.Error:  # no platform is installed
            platforms = []
        if POCL not in platforms:
            raise InputError(f"OpenCL has no PoCL; {INSTALL}")
        # Only the parameters are macros. Kernel Tuner's own macros include the grid, so each shape needs a compilation.
        self._source = KernelSource(FUNCTION, SOURCE.read_text(), "OpenCL", {name: name for name in KERNEL.parameters})
        self._device = DeviceInterface(self._source, platform=platforms.index(POCL), quiet=True, iterations=LAUNCHES)
        self.space = space
        self._functions: dict[int, Any] = {}
        self.arguments: dict[Shape, list[Any]] = {}
        self._buffers: dict[Shape, list[Any]] = {}
        environment = self._device.get_environment()
        self.name = str(environment["device_name"])
        self.origin = f"Kernel Tuner {version('kernel_tuner')} on {environment['platform_version']}, one thread"
        self.failures: dict[int, str] = {}

    def allocate(self, shapes: Sequence[Shape]) -> None:
        """Allocate new matrices for ``shapes`` and drop the old ones, because their addresses in memory change
        times."""
        random = np.random.default_rng(0)
        for shape in shapes:
            a = random.random((shape.m, shape.k), np.float32) - np.float32(0.5)
            b = random.random((shape.k, shape.n), np.float32) - np.float32(0.5)
            c = np.zeros((shape.m, shape.n), np.float32)
            self.arguments[shape] = [a, b, c, *map(np.int32, shape)]
            self._buffers[shape] = self._device.ready_argument_list(self.arguments[shape])

    def compile(self, number: int) -> None:
        """Compile configuration ``number`` and compare its results with numpy's."""
        try:
            self._functions[number] = self._device.compile_kernel(self._instance(number, RAGGED[0]), False)
            for shape in RAGGED:
                a, b, *_ = self.arguments[shape]
                self._device.check_kernel_output(
                    func=self._functions[number],
                    gpu_args=self._buffers[shape],
                    instance=self._instance(number, shape),
                    answer=[None, None, a @ b, None, None, None],
                    atol=1e-4,
                    verify=None,
                    verbose=False,
                )
        except Exception as error:  # any error of the compiler or the driver is the row's reason
            self.failures[number] = reason_of(error)

    def time_us(self, number: int, shape: Shape) -> float:
        """Return the minimum time of `LAUNCHES` launches, or NaN if they fail. The failure is stored."""
        instance = self._instance(number, shape)
        try:
            result: dict[str, Any] = self._device.benchmark(
                func=self._functions[number],
                gpu_args=self._buffers[shape],
                instance=instance,
                verbose=False,
                objective="time",
            )
        except Exception as error:  # as above
            result = {"__error__": reason_of(error)}
        if "__error__" in result:
            self.failures[number] = str(result["__error__"])
            return np.nan
        return 1e3 * min(result["times"])

    def _instance(self, number: int, shape: Shape) -> Any:
        """Return the configuration's source with the grid for the shape."""
        from kernel_tuner.interface import Options

        values: dict[str, Any] = {**self.space[number]}
        values["block_size_x"] = values["tile_n"] // values["item_n"]
        values["block_size_y"] = values["tile_m"] // values["item_m"]
        options = Options(
            kernel_name=FUNCTION,
            problem_size=(shape.n, shape.m),
            arguments=self.arguments[shape],
            grid_div_x=["tile_n"],
            grid_div_y=["tile_m"],
            grid_div_z=None,
            block_size_names=None,
        )
        return self._device.create_kernel_instance(self._source, options, values, False)


def measure(path: Path, shapes: Sequence[Shape], space: Sequence[Configuration], passes: int) -> pd.DataFrame:
    """Measure and write the table at ``path``."""
    require_writable(path)
    cache = path.with_suffix(".pocl").absolute()
    os.environ |= {"POCL_CACHE_DIR": str(cache), "POCL_MAX_PTHREAD_COUNT": "1"}  # PoCL reads them when it is loaded
    bench = Bench(space)
    bench.allocate(RAGGED)
    for number in tqdm(range(len(space)), "compiling", disable=None, leave=False):
        bench.compile(number)
    click.echo(f"compiled; {len(bench.failures)} of {len(space)} configurations failed", err=True)
    times = np.round([one_pass(bench, shapes, number) for number in range(passes)], 3)
    frame = table_of(bench.name, shapes, space, times, bench.failures)
    metadata = {"schema": SCHEMA_VERSION, "candidates": "all", "origin": bench.origin}
    write_table(frame, path, {**metadata, "kernel": KERNEL.to_dict(), "noise": noise_of(times)})
    return frame


def one_pass(bench: Bench, shapes: Sequence[Shape], seed: int) -> np.ndarray:
    """Return times in µs (shapes, configurations), measured in a random order."""
    times = np.full((len(shapes), len(bench.space)), np.nan)
    bench.allocate(shapes)
    order = np.random.default_rng(seed).permutation(times.size)
    for place in tqdm(order, f"pass {seed + 1}", disable=None, leave=False):
        shape, number = divmod(int(place), len(bench.space))
        if number not in bench.failures:
            times[shape, number] = bench.time_us(number, shapes[shape])
    return times


def table_of(
    gpu: str, shapes: Sequence[Shape], space: Sequence[Configuration], times: np.ndarray, failures: dict[int, str]
) -> pd.DataFrame:
    """Return one row per shape and configuration from times (passes, shapes, configurations).

    A configuration of ``failures`` (its number → reason) failed for every shape.
    """
    reasons = pd.Series([failures.get(number) for number in range(len(space))], dtype=object)
    times = np.where(reasons.isna(), times, np.nan).reshape(len(times), -1)
    problems, parameters = pd.DataFrame(shapes), pd.DataFrame([*space]).assign(reason=reasons)
    frame = problems.merge(parameters, how="cross").assign(
        status=np.where([*reasons.isna()] * len(shapes), "ok", "failed"),
        time_us=np.median(times, axis=0),
        time_us_min=times.min(axis=0),
        time_us_max=times.max(axis=0),
        repeats=np.isfinite(times).sum(axis=0),
    )
    frame.insert(0, "gpu", gpu)
    return frame


def noise_of(times: np.ndarray) -> float:
    """Return the relative difference below which two times are equal: the standard deviation between equal times.

    The medians of the odd and of the even passes are two measurements of the same time. They use half the passes, so
    their difference is √2 times the difference of two medians of all passes. 1.48 × the median of the distances
    estimates their standard deviation, and single disturbed rows do not change it.
    """
    if len(times) < 2:
        return 0.0
    distance = np.abs(np.log(np.median(times[::2], axis=0) / np.median(times[1::2], axis=0)))
    return round(float(1.48 * np.nanmedian(distance) / np.sqrt(2)), 4)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="The table to write, parquet.")
@click.option("--passes", default=9, show_default=True, type=click.IntRange(min=1))
def main(output: Path, passes: int) -> None:
    """Measure a matrix product in OpenCL on this CPU: all configurations on all shapes."""
    space = configurations(KERNEL)
    with in_one_line("cpu_kernel"):
        frame = measure(output, drawn_shapes(SHAPES), space, passes)
    click.echo(f"{output}: {len(frame):,} rows of {SHAPES} shapes and {len(space)} configurations")


if __name__ == "__main__":
    main(prog_name="python -m experiments.cpu_kernel")
