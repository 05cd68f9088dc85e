"""Hardware whose batch times were measured, or follow from the shape of a model."""
