"""The error of all analysis commands."""


class AnalysisError(Exception):
    """A mistake the user can mend; the message names the file or row and says how."""
