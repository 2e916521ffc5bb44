"""The agent's change, read with git in the workspace. Imports no OpenHands.

An agent may do to the repository whatever it likes. One that it leaves without the base commit hands nothing
in: that is its own doing, because the repository was whole when it began.
"""

import shlex

from evaluation.swe.protocol import REPOSITORY
from sao.environments.base import EnvironmentFailure

DIFF = (
    "git -c core.fileMode=false -c core.quotePath=false diff --cached --no-color --no-ext-diff --no-textconv"
    " --no-renames --src-prefix=a/ --dst-prefix=b/"
)
"""As git shows a change by itself, whatever the agent set in the repository's configuration."""
RUINED = 77  # status of a script whose git cannot read the repository
OF_THE_MACHINE = (
    "No space left|Disk quota|Cannot allocate|Out of memory|Resource temporarily|Too many open files"
    "|Input/output error"
)


def base_script(base_commit: str, repository: str = REPOSITORY) -> str:
    """Shell script that prints the hash of the commit that a task starts from, which may be an expression.

    A branch may be moved by the agent; its hash stays.
    """
    place = shlex.quote(repository)
    return f"""\
cd {place} || exit 2
git config --global --add safe.directory {place}
git rev-parse --verify {shlex.quote(base_commit + "^{commit}")}
"""


def checked_base(status: int, output: str) -> str:
    """The output of `base_script`; EnvironmentFailure where the workspace began without the commit."""
    if status != 0:
        raise EnvironmentFailure(f"the base commit is not there (status {status}): {output.strip()[-300:]}")
    return output.split()[-1]


def change_script(base_commit: str, repository: str = REPOSITORY) -> str:
    """Shell script that prints the difference to the base commit, with new files; it fails where git does.

    The index is a new one: the agent's may be locked or broken. Files that git cannot read (status 1 of
    `git add`) are left out. Any other failure ends the script, with status RUINED where git does not blame
    the machine for it.
    """
    place = shlex.quote(repository)
    return f"""\
failed() {{
  if echo "$2" | grep -qE "{OF_THE_MACHINE}"; then echo "$2"; exit "$1"; fi
  exit {RUINED}
}}
cd {place} || exit {RUINED}
git config --global --add safe.directory {place}
scratch=$(mktemp -d) || exit 2
export GIT_INDEX_FILE="$scratch/index"
said=$(git read-tree {shlex.quote(base_commit)} 2>&1 && git add --all --ignore-errors 2>&1)
status=$?
if [ $status -gt 1 ]; then failed $status "$said"; fi
{DIFF} {shlex.quote(base_commit)} 2> "$scratch/errors"
status=$?
if [ $status -ne 0 ]; then failed $status "$(cat "$scratch/errors")"; fi
rm -rf "$scratch"
"""


def checked_change(status: int, output: str) -> str:
    """The output of `change_script`, nothing for a ruined repository.

    EnvironmentFailure for a script that failed for another reason, which is no empty change.
    """
    if status == RUINED:
        return ""
    if status != 0:
        raise EnvironmentFailure(f"git could not tell the change (status {status}): {output.strip()[-300:]}")
    return output


__all__ = ["RUINED", "base_script", "change_script", "checked_base", "checked_change"]
