"""Models for the demo, the tests and the benchmarks: small, and there without a download."""
