"""Twins: a real engine and its simulation, under the same requests."""

from penstock.twin.drift import Drift, drift_of
from penstock.twin.experiment import Calibration, Prediction, Settings, Trial, Twin, as_dict, calibrate, predict, twin
from penstock.twin.observed import observed_run

__all__ = [
    "Calibration",
    "Drift",
    "Prediction",
    "Settings",
    "Trial",
    "Twin",
    "as_dict",
    "calibrate",
    "drift_of",
    "observed_run",
    "predict",
    "twin",
]
