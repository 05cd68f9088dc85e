"""What a model's shape and a GPU's kernels say of batch times and memory, without a run."""
