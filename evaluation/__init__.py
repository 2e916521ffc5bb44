"""Benchmarks: they run a policy over HTTP, grade its answers and keep every sample."""
