"""From end-to-end benchmarks to a calibrated server, and predictions held against measurements."""
