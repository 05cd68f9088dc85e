"""The convex hull of points in a plane, from left to right below or from right to left above."""

import numpy as np

from penstock.inputs.arrays import Floats

FLAT = 1e-12
"""Corners that stand out by less than this share of the largest coordinate are rounding errors."""


def corners(path: Floats) -> Floats:
    """Return the points of a path at which its convex hull turns left, its ends included."""
    # A path that goes right by (b, t_b) gives the lower convex envelope of t; one that goes left
    # and up the upper right side of the hull. Shape (points, 2), of about 1, ordered along one
    # axis, no point twice.
    inner = np.ones(1, bool)
    while inner.any() and len(path) > 2:  # what lies in the chord of its neighbours is no corner
        step = np.diff(path, axis=0)
        inner = step[:-1, 0] * step[1:, 1] <= step[:-1, 1] * step[1:, 0]
        path = path[np.r_[True, ~inner, True]]
    return np.array(_beyond_rounding(path.tolist()))


def _beyond_rounding(path: list[list[float]]) -> list[list[float]]:
    """Drop corners that stand out by a rounding error only (Andrew's monotone chain)."""
    hull: list[list[float]] = []
    for x, y in path:
        while len(hull) > 1:
            (x0, y0), (x1, y1) = hull[-2:]
            bulge = (x1 - x0) * (y - y0) - (y1 - y0) * (x - x0)
            if bulge > FLAT * np.hypot(x - x0, y - y0):
                break
            hull.pop()
        hull.append([x, y])
    return hull
