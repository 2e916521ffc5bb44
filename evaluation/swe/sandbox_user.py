"""The user that commands in a sandbox run as: one without an account or any right on this machine.

The kernel holds the limit on processes (RLIMIT_NPROC) of every user but root, in whatever namespace. So a
sandbox of root's runs as an id of its own, which nothing else runs as. Another caller's is in a user
namespace of its own, where the kernel counts anew (before Linux 5.14, all of the caller's processes).
"""

import os
import random
from dataclasses import dataclass
from pathlib import Path

INSIDE = 0  # id of a caller other than root; with another one bubblewrap makes a second namespace below
CEILING = 2**31  # of the ids; tools that keep them in 32 signed bits stop here
NAME = "agent"


@dataclass(frozen=True)
class SandboxUser:
    """`outside` is the id on this machine, None where it is the caller's; `inside` the one seen inside."""

    outside: int | None
    inside: int

    @classmethod
    def new(cls) -> "SandboxUser":
        """A user for one sandbox; ids of accounts and of other programs' namespaces lie lower."""
        if os.geteuid() != 0:
            return cls(None, INSIDE)
        mapped = sum(int(line.split()[2]) for line in Path("/proc/self/uid_map").read_text().splitlines())
        ceiling = min(mapped, CEILING)
        chosen = random.SystemRandom().randrange(ceiling * 7 // 8, ceiling)
        return cls(chosen, chosen)

    @property
    def isolation(self) -> list[str]:
        """Options of bubblewrap. Root's sandbox may take its user, and has no other capability."""
        if self.outside is None:
            words = ["--unshare-user", "--uid", str(self.inside), "--gid", str(self.inside)]
            return [*words, "--cap-drop", "ALL"]
        return ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]

    @property
    def becoming(self) -> list[str]:
        """Words before a command inside, which take the user and give up all capabilities."""
        if self.outside is None:
            return []
        ids = ["--reuid", str(self.outside), "--regid", str(self.outside), "--clear-groups"]
        return ["setpriv", *ids, "--inh-caps=-all", "--ambient-caps=-all"]

    def own(self, place: Path) -> None:
        """Give a file, or a folder with all in it, to the user."""
        if self.outside is None:
            return
        os.lchown(place, self.outside, self.outside)
        for folder, folders, files in os.walk(place):
            for name in (*folders, *files):
                os.lchown(os.path.join(folder, name), self.outside, self.outside)

    def write_accounts(self, folder: Path, home: str) -> None:
        """Write passwd and group for inside."""
        lines = [f"{NAME}:x:{self.inside}:{self.inside}:{NAME}:{home}:/bin/bash"]
        lines += ["root:x:0:0:root:/:/bin/false", "nobody:x:65534:65534:nobody:/:/bin/false"]
        (folder / "passwd").write_text("\n".join(lines) + "\n")
        (folder / "group").write_text(f"{NAME}:x:{self.inside}:\nroot:x:0:\nnogroup:x:65534:\n")
