"""From measured batches to a batch-time model."""
