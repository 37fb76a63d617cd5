"""Benchmarks: ratios to a peer measured in the same run, behind a check that the results are right."""
