"""The releases that SWE-Bench was tested with; imports neither OpenHands nor the harness.

Resolvers that see no pins choose releases of two years ago without a word, so commands ask before they
import.
"""

import os
from importlib import metadata

AGENT = {
    "openhands-sdk": "1.58.2",
    "openhands-tools": "1.58.2",
    "openhands-agent-server": "1.58.2",
    "openhands-workspace": "1.58.2",
}
HARNESS = {"swebench": "5.0.2"}
MEND = "make it with: make openhands-environment, and use .venv-openhands/bin/python"

OFFLINE = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # fetched from the network at import otherwise
    "OPENHANDS_SUPPRESS_BANNER": "1",
    "ANONYMIZED_TELEMETRY": "false",
    "OH_TELEMETRY_CONSENT": "false",
    "DO_NOT_TRACK": "1",
}
"""Environment of every process that imports OpenHands: no telemetry, no download."""


class VersionError(Exception):
    """Packages are missing or of other releases; the message names them and the mend."""


def require(releases: dict[str, str]) -> None:
    """Raise VersionError unless exactly these releases are installed; sets the offline environment."""
    os.environ.update(OFFLINE)
    wrong = []
    for name, release in releases.items():
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            found = "not installed"
        if found != release:
            wrong.append(f"{name} {found} where {release} is needed")
    if wrong:
        raise VersionError(f"SWE-Bench has an environment of its own ({'; '.join(wrong)}); {MEND}")
