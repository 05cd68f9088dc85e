"""``penstock serve``: a scenario with sliders, and engines that are watched, in a browser."""
