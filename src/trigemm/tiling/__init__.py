"""Tiled products: what they move, counted and in closed form, and which tiles suit a device."""

from trigemm.tiling.devices import Device, known, names
from trigemm.tiling.matmul import TiledProduct, tiled_matmul
from trigemm.tiling.plan import Candidate, Plan, plan
from trigemm.tiling.traffic import Moved, Traffic, predicted_traffic

__all__ = [
    "Candidate",
    "Device",
    "Moved",
    "Plan",
    "TiledProduct",
    "Traffic",
    "known",
    "names",
    "plan",
    "predicted_traffic",
    "tiled_matmul",
]
