"""Figures, each a ratio to a baseline taken in the same run: `python -m benchmarks`."""
