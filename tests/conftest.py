"""Settings of all tests."""

import signal
from importlib import metadata

from hypothesis import settings

# A deadline measures how busy the machine is, and fails tests at random where other work runs beside them.
settings.register_profile("any_machine", deadline=None)
settings.load_profile("any_machine")

# A shell starts background commands with interrupts ignored, and their children inherit that: the commands
# that the tests start must be open to Ctrl-C however the tests themselves were started.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Both have environments of their own, where `make test-openrlhf` and `make test-openhands` run their tests.
OWN_ENVIRONMENTS = {"openrlhf": "openrlhf", "swe": "openhands-sdk"}
collect_ignore = [
    folder for folder, package in OWN_ENVIRONMENTS.items() if not any(metadata.distributions(name=package))
]
