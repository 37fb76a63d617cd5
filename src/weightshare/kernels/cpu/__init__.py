"""Compiled CPU kernels of the certified prox and of isotonic regression (NumPy arrays in, NumPy arrays
out)."""
