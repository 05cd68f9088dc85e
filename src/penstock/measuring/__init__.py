"""From real servers to batch times: fits, calibrations, profiles, twins."""
