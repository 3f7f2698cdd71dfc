"""Small models for the demo, the tests and the benchmarks, without a download."""
