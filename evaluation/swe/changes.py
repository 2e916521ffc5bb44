"""The agent's change, read with git in the workspace. Imports no OpenHands."""

import shlex

from evaluation.swe.protocol import REPOSITORY
from sao.environments.base import EnvironmentFailure

DIFF = (
    "git -c core.fileMode=false -c core.quotePath=false diff --no-color --no-ext-diff --no-renames --cached"
)


def change_script(base_commit: str, repository: str = REPOSITORY) -> str:
    """Shell script that prints the difference to the base commit, with new files; it fails where git does.

    A lock that an ended git left behind is removed. Files that git cannot read (status 1 of `git add`) are
    left out; any other failure ends the script, or an empty index would be taken for an empty change.
    """
    place = shlex.quote(repository)
    return f"""\
cd {place} || exit 2
git config --global --add safe.directory {place}
rm -f .git/index.lock
said=$(git add --all --ignore-errors 2>&1)
status=$?
if [ $status -gt 1 ]; then echo "$said"; exit $status; fi
{DIFF} {shlex.quote(base_commit)}
"""


def checked_change(status: int, output: str) -> str:
    """The output of `change_script`; EnvironmentFailure for one that failed, which is no empty change."""
    if status != 0:
        raise EnvironmentFailure(f"git could not tell the change (status {status}): {output.strip()[-300:]}")
    return output


__all__ = ["change_script", "checked_change"]
