"""A package, so that ``python -m tests.benchmarks`` is ours whatever else calls itself tests."""
