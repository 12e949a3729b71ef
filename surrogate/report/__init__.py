"""From the judged results of a comparison to what people read: tables, CSV, figures, one HTML page."""

from surrogate.report.csv_files import write_csv
from surrogate.report.results import SCHEMA, read_results
from surrogate.report.terminal import terminal_summary
from surrogate.report.write import FIGURE_FILES, write_report

__all__ = ["FIGURE_FILES", "SCHEMA", "read_results", "terminal_summary", "write_csv", "write_report"]
