"""Settings of all tests."""

from hypothesis import settings

# A deadline measures how busy the machine is, and fails tests at random where other work runs beside them.
settings.register_profile("any_machine", deadline=None)
settings.load_profile("any_machine")
