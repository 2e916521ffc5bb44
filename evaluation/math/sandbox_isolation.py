"""The kernel's side of the Python tool's sandbox: namespaces, capabilities, limits, system call filter.

Runs inside bubblewrap, in the processes forked from the warm interpreter. Standard library only.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import struct
from collections.abc import Iterable
from pathlib import Path

SCRATCH = "/scratch"
SESSION_ID = 1000  # user and group id that the model's code sees
OPEN_FILES = 128

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 1, 4, 22, 38
CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x20000, 0x2000000, 0x4000000, 0x8000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
NAMESPACES = (
    CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET
)
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REC, MS_PRIVATE = 2, 4, 8, 0x4000, 0x40000

libc = ctypes.CDLL(None, use_errno=True)


def checked(result: int, what: str) -> None:
    """Raises OSError with errno and `what` where a call of the C library failed."""
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def enter_namespaces(uid: int | None) -> None:
    """Moves this process into namespaces of its own; its next child is process 1 of the new PID namespace.

    `uid` is the host's id that the session runs under where the server is root. Without it the session keeps
    the caller's. Either way the namespaces belong to an unprivileged user, so that RLIMIT_NPROC holds.
    """
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        show_to_itself()  # a change of user hides it
    user, group = os.getuid(), os.getgid()
    checked(libc.unshare(NAMESPACES), "cannot make namespaces")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{SESSION_ID} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{SESSION_ID} {group} 1")
    # A user namespace below this one could mount tmpfs without a size.
    Path("/proc/sys/user/max_user_namespaces").write_text("0")


def mount_session(scratch_mb: int) -> None:
    """Mounts this session's scratch folder and its own view of processes, and moves into the former."""
    flags = MS_NOSUID | MS_NODEV | MS_NOEXEC
    checked(libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None), "cannot make mounts private")
    options = f"size={scratch_mb}m,nr_inodes=4096,mode=700".encode()
    checked(libc.mount(b"tmpfs", SCRATCH.encode(), b"tmpfs", flags, options), "cannot mount scratch")
    checked(libc.mount(b"proc", b"/proc", b"proc", flags, b"subset=pid"), "cannot mount /proc")
    os.chdir(SCRATCH)


def limit_resources(memory_mb: int, processes: int | None, scratch_mb: int) -> None:
    """Sets the limits that the kernel holds by itself, for this process and its children.

    Memory is per process, beyond what the warm interpreter has mapped; the supervisor checks the sum. Without
    a user namespace the kernel would count all processes of the user, so `processes` is None there.
    """
    Path("/proc/self/oom_score_adj").write_text("1000")  # where the host runs out, this is what it ends
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    address_space = pages * resource.getpagesize() + memory_mb * 2**20
    limits = [
        (resource.RLIMIT_AS, address_space),
        (resource.RLIMIT_FSIZE, scratch_mb * 2**20),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_SIGPENDING, 1024),
    ]
    if processes is not None:
        limits.append((resource.RLIMIT_NPROC, processes + 1))  # the supervisor counts as well
    for which, value in limits:
        _, hard = resource.getrlimit(which)
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(which, (value, value))


def drop_privileges() -> None:
    """Gives up every capability for good and installs the system call filter."""
    header = struct.pack("Ii", 0x20080522, 0)
    checked(libc.capset(header, bytes(24)), "capset")
    checked(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")
    filter_system_calls()


def die_with_parent() -> None:
    checked(libc.prctl(PR_SET_PDEATHSIG, 9, 0, 0, 0), "prctl")


def hide_from_debuggers() -> None:
    """Closes this process's files and memory under /proc to others of its user, its children among them."""
    checked(libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0), "prctl")


def show_to_itself() -> None:
    """Undoes hide_from_debuggers in a child, which would find its own /proc/self closed."""
    checked(libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0), "prctl")


# System calls by name: numbers on x86-64 and on 64-bit ARM.
MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
REFUSED = {
    # namespaces and mounts
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsmount": (432, 432),
    "mount_setattr": (442, 442),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    # other processes, the supervisor among them
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "setpriority": (141, 140),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "sched_setattr": (314, 274),
    "sched_setaffinity": (203, 122),
    "ioprio_set": (251, 30),
    # memory that belongs to no process and no size-limited mount
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "semget": (64, 190),
    "msgget": (68, 186),
    "mq_open": (240, 180),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    # parts of the kernel with many faults and no use here
    "bpf": (321, 280),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
}
CLONE, CLONE3, SOCKET, SOCKETPAIR, PRLIMIT64 = (56, 220), (435, 435), (41, 198), (53, 199), (302, 261)
AF_UNIX = 1

LOAD, JUMP_EQUAL, JUMP_GREATER_EQUAL, JUMP_BITS, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # BPF operations
ALLOW, KILL, ERROR = 0x7FFF0000, 0x80000000, 0x00050000  # seccomp's return values
NUMBER_AT, MACHINE_AT, ARGUMENT_AT = 0, 4, 16  # offsets in struct seccomp_data
X32 = 0x40000000

Instruction = tuple[int, int, int, int]  # operation, jump if true, jump if false, operand


def unless_argument(number: int, jump: Instruction, error: int) -> list[Instruction]:
    """System call `number` fails with `error` unless `jump`, on its first argument's low half, skips one."""
    return [
        (JUMP_EQUAL, 0, 4, number),
        (LOAD, 0, 0, ARGUMENT_AT),
        jump,
        (RETURN, 0, 0, ERROR | error),
        (LOAD, 0, 0, NUMBER_AT),
    ]


def filter_program(machine: str) -> list[Instruction]:
    """The system call filter of one machine type; raises OSError for a type it does not know."""
    if machine not in MACHINES:
        raise OSError(errno.ENOSYS, f"no system call filter for machine type {machine}")
    column, audit_machine = MACHINES[machine]
    program: list[Instruction] = [
        (LOAD, 0, 0, MACHINE_AT),
        (JUMP_EQUAL, 1, 0, audit_machine),
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, NUMBER_AT),
    ]
    if machine == "x86_64":
        program += [(JUMP_GREATER_EQUAL, 0, 1, X32), (RETURN, 0, 0, KILL)]
    for numbers in REFUSED.values():
        program += [(JUMP_EQUAL, 0, 1, numbers[column]), (RETURN, 0, 0, ERROR | errno.EPERM)]
    # Filters cannot read clone3's structure; without it the C library uses clone.
    program += [(JUMP_EQUAL, 0, 1, CLONE3[column]), (RETURN, 0, 0, ERROR | errno.ENOSYS)]
    program += unless_argument(CLONE[column], (JUMP_BITS, 0, 1, NAMESPACES), errno.EPERM)
    for numbers in (SOCKET, SOCKETPAIR):
        program += unless_argument(numbers[column], (JUMP_EQUAL, 1, 0, AF_UNIX), errno.ENETUNREACH)
    program += unless_argument(PRLIMIT64[column], (JUMP_EQUAL, 1, 0, 0), errno.EPERM)
    return [*program, (RETURN, 0, 0, ALLOW)]


class FilterHead(ctypes.Structure):
    """struct sock_fprog of the kernel."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def packed(program: Iterable[Instruction]) -> bytes:
    return b"".join(struct.pack("HBBI", *instruction) for instruction in program)


def filter_system_calls() -> None:
    program = filter_program(platform.machine())
    head = FilterHead(len(program), packed(program))
    checked(libc.prctl(PR_SET_SECCOMP, 2, ctypes.byref(head), 0, 0), "cannot install the system call filter")
