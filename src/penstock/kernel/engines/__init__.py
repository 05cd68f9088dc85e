"""How engines form batches: a rule each, in plain numbers and arrays."""
