"""`write_report`: complete the folder of a comparison."""

from collections.abc import Callable
from pathlib import Path

from surrogate.dataset.atomic import write_text
from surrogate.features.errors import InputError
from surrogate.report.csv_files import write_csv
from surrogate.report.figures import bucket_figure, gpu_figure, predicted_figure, slowdown_figure
from surrogate.report.frames import read_choices, read_predictions
from surrogate.report.html import page
from surrogate.report.results import Results, read_results
from surrogate.report.rows import best_model, choice_rows, label
from surrogate.report.style import shown_models

FIGURES = ("slowdowns", "gpus", "predicted", "buckets")
FIGURE_FILES = tuple(f"figures/{name}.svg" for name in FIGURES)
"""What a report may draw; one that this run does not draw is removed, so that an earlier run's cannot pass for it."""


def write_report(directory: Path) -> Path:
    """Write figures/*.svg, time_rows.csv, choice_rows.csv and report.html beside ``directory/results.json``.

    Returns the page's path. A missing parquet file costs its figures, with the reason on the page. Raises
    `InputError` where results.json is missing, damaged or of a newer schema, or a parquet file is damaged.
    """
    directory = Path(directory)
    results = read_results(directory)
    figures, absent = draw(results, directory)
    text = page(results, figures, absent)
    _write_figures(directory / "figures", figures)
    write_csv(results, directory)
    write_text(directory / "report.html", text)
    return directory / "report.html"


def _write_figures(folder: Path, figures: dict[str, str]) -> None:
    try:
        folder.mkdir(exist_ok=True)
        for name in FIGURES:
            if name not in figures:  # a figure of an earlier run must not pass for this one's
                (folder / f"{name}.svg").unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"{folder} cannot be written ({error.strerror}); choose another place") from None
    for name, drawn in figures.items():
        write_text(folder / f"{name}.svg", drawn)


def draw(results: Results, directory: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Figures by name as SVG text, and for each one that cannot be drawn the reason."""
    models = shown_models(results)
    attempts: dict[str, Callable[[], str | None]] = {
        "slowdowns": lambda: _slowdowns(results, directory, models),
        "gpus": lambda: gpu_figure(results, models),
        "predicted": lambda: _predicted(results, directory),
        "buckets": lambda: _buckets(directory, models),
    }
    figures: dict[str, str] = {}
    absent: dict[str, str] = {}
    for name, attempt in attempts.items():
        try:
            drawn = attempt()
        except FileNotFoundError as missing:
            absent[name] = f"{missing} is missing; seer compare writes it"
            continue
        if drawn is None:
            absent[name] = "no judged rows to draw"
        else:
            figures[name] = drawn
    return figures, absent


def _slowdowns(results: Results, directory: Path, models: list[str]) -> str | None:
    rows = choice_rows(results)
    frame = read_choices(directory, models, label(rows[0], "stratum") if rows else "all")
    if frame is None:
        raise FileNotFoundError("choices.parquet")
    return slowdown_figure(frame, models)


def _predicted(results: Results, directory: Path) -> str | None:
    model = best_model(results)
    frame = read_predictions(directory, [model] if model else [])
    if frame is None:
        raise FileNotFoundError("predictions.parquet")
    return predicted_figure(frame) if model else None


def _buckets(directory: Path, models: list[str]) -> str | None:
    frame = read_predictions(directory, models)
    if frame is None:
        raise FileNotFoundError("predictions.parquet")
    return bucket_figure(frame, models)
