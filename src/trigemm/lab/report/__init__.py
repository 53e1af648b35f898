"""What records say, in forms that people read: Markdown tables, a picture, an HTML page. Nothing is measured here."""

from trigemm.lab.report.plots import check_plot, plot
from trigemm.lab.report.tables import TABLES, markdown, table, update

__all__ = ["TABLES", "check_plot", "markdown", "plot", "table", "update"]
