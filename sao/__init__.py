"""Single-rollout asynchronous optimization (SAO, arXiv:2607.07508): the method and the ways to run it."""

__version__ = "0.1.0"
