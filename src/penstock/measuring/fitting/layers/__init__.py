"""From published times of a model's layers to times of batches."""
