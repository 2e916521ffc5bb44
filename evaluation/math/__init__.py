"""The mathematics benchmarks: data, Python tool, conversation, grading and runner."""
