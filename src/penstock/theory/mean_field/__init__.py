"""The mean field of a server that decodes first: its chain, how that settles, its fixed points."""

from penstock.theory.mean_field.chain import Costs, Lengths, Work
from penstock.theory.mean_field.fixed_points import Point, fixed_points
from penstock.theory.mean_field.stationary import LAGS

__all__ = ["LAGS", "Costs", "Lengths", "Point", "Work", "fixed_points"]
