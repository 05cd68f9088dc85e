"""From real servers to batch times: fits and calibrations."""
