"""The page's charts, as Vega-Lite specifications: one a file."""

from trigemm.lab.report.charts.errors import errors
from trigemm.lab.report.charts.ladder import ladder
from trigemm.lab.report.charts.roofline import roofline
from trigemm.lab.report.charts.speedups import speedups
from trigemm.lab.report.charts.tiles import tiles
from trigemm.lab.report.charts.traffic import COUNTERS, traffic
from trigemm.lab.report.charts.vega import Chart

__all__ = ["COUNTERS", "Chart", "errors", "ladder", "roofline", "speedups", "tiles", "traffic"]
