"""What records say, in forms that people read: Markdown tables, a picture, an HTML page. Nothing is measured here."""

from trigemm.lab.report.load import FOLDERS, Loaded, default_files, load
from trigemm.lab.report.page import page
from trigemm.lab.report.plots import check_plot, plot
from trigemm.lab.report.tables import TABLES, markdown, table, update

__all__ = ["FOLDERS", "TABLES", "Loaded", "check_plot", "default_files", "load", "markdown", "page", "plot", "table", "update"]
