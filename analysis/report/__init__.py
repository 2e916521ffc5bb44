"""The report: one HTML file that opens offline. `python -m analysis.report` writes it."""
