"""What benchmark results are worth: what each load shows, and what it does not."""
