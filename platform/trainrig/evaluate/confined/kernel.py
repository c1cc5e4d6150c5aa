"""Confinement of this process by the kernel: Landlock, seccomp, limits and no capabilities.

It runs without site-packages (`python -P -s -S`), so it imports only the standard library, and not
this package. The numbers are those of Linux on x86-64 (landlock(7), seccomp(2), capabilities(7)).
"""

import ctypes
import os
import resource
import struct
from collections.abc import Iterable

ABI_WANTED = 1
MOST_THREADS = 64  # limit for a program in a separate user namespace that is not root
_LIBC = ctypes.CDLL(None, use_errno=True)
_PYTHON = ctypes.PyDLL(None, use_errno=True)  # holds the GIL during calls

_SYS_CREATE_RULESET = 444
_SYS_ADD_RULE = 445
_SYS_RESTRICT_SELF = 446
_SYS_CAPSET = 126
_PR_SET_PDEATHSIG = 1
_PR_SET_SECCOMP = 22
_PR_CAPBSET_DROP = 24
_PR_SET_NO_NEW_PRIVS = 38
_SIGKILL = 9
_SIGCHLD = 17
# CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET.
_NAMESPACES = 0x20000 | 0x4000000 | 0x8000000 | 0x10000000 | 0x20000000 | 0x40000000
_LAST_CAPABILITY = 63

# Rights of Landlock on files: read a file, read a folder.
_READ_FILE = 1 << 2
_READ_DIR = 1 << 3
# Number of file rights in each Landlock version: version 1 has 13; 2, 3 and 5 add refer, truncate
# and ioctl. Version 4 adds two network rights, and 6 the scopes of signals and abstract sockets.
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}

# The system calls that a running interpreter needs to compute, and no more: none for sockets,
# processes, other programs, file attributes, signals to others or the memory of other processes.
ALLOWED = {
    "read": 0, "write": 1, "close": 3, "stat": 4, "fstat": 5, "lstat": 6, "poll": 7, "lseek": 8,
    "mmap": 9, "mprotect": 10, "munmap": 11, "brk": 12, "rt_sigaction": 13, "rt_sigprocmask": 14,
    "rt_sigreturn": 15, "pread64": 17, "readv": 19, "writev": 20, "access": 21, "pipe": 22,
    "select": 23, "sched_yield": 24, "mremap": 25, "madvise": 28, "dup": 32, "dup2": 33,
    "nanosleep": 35, "getitimer": 36, "alarm": 37, "setitimer": 38, "getpid": 39, "exit": 60,
    "uname": 63, "getcwd": 79, "chdir": 80, "readlink": 89, "gettimeofday": 96, "getrlimit": 97,
    "getrusage": 98, "sysinfo": 99, "times": 100, "getuid": 102, "getgid": 104, "geteuid": 107,
    "getegid": 108, "getppid": 110, "sigaltstack": 131, "gettid": 186, "time": 201, "futex": 202,
    "getdents64": 217, "set_tid_address": 218, "restart_syscall": 219, "clock_gettime": 228,
    "clock_getres": 229, "clock_nanosleep": 230, "exit_group": 231, "epoll_wait": 232,
    "epoll_ctl": 233, "openat": 257, "newfstatat": 262, "readlinkat": 267, "pselect6": 270,
    "set_robust_list": 273, "eventfd2": 290, "epoll_create1": 291, "dup3": 292, "pipe2": 293,
    "preadv": 295, "getrandom": 318, "statx": 332, "rseq": 334, "faccessat2": 439,
}  # fmt: skip
# System calls that are allowed only with certain arguments: for each call, the allowed values of
# 32-bit words of the arguments (word 0 is the low half of the first argument, word 1 its high
# half).
CHECKED: dict[int, dict[int, tuple[int, ...]]] = {
    # ioctl: TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX.
    16: {2: (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)},
    # fcntl: F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_DUPFD_CLOEXEC, F_GETPIPE_SZ. F_SETFL is excluded,
    # and every command that makes the kernel send signals.
    72: {2: (0, 1, 2, 3, 1030, 1032)},
    204: {0: (0,)},  # sched_getaffinity for the calling process
    302: {0: (0,), 4: (0,), 5: (0,)},  # prlimit64 for the calling process, without a new limit
}
WAIT4 = 61
_CLONE = 56
_CLONE3 = 435
_CLONE_THREAD = 0x10000
# The clone flags with which C libraries start a thread: shared memory, file system, files, signal
# handlers, thread group and semaphores, thread-local storage, and setting and clearing the id.
_CLONE_FLAGS_OF_THREADS = 0x7D0F00
_ARCHITECTURE = 0xC000003E  # AUDIT_ARCH_X86_64
_FIRST_X32 = 0x40000000
_ARGUMENTS = 16  # offset of the arguments in `struct seccomp_data`
_ALLOW = 0x7FFF0000
_KILL = 0x80000000
_ERRNO = 0x00050000
_EPERM = 1
_ENOSYS = 38


class CannotConfine(Exception):
    """Lack of a kernel feature for confinement; the message names it."""


def confine(
    readable: Iterable[str], memory: int, seconds: int, more_calls: Iterable[int] = ()
) -> None:
    """Confine this process so that it can only compute.

    `readable` are folders and files that it may read, `memory` is the limit of its address space in
    bytes, `seconds` the limit of CPU time, and `more_calls` are numbers of system calls to allow in
    addition to `ALLOWED`. Raises CannotConfine if the kernel lacks a feature.
    """
    machine = os.uname()
    if machine.sysname != "Linux" or machine.machine != "x86_64":
        raise CannotConfine(
            f"confinement needs Linux on x86_64, but this is {machine.sysname} on {machine.machine}"
        )
    _call_prctl(_PR_SET_PDEATHSIG, _SIGKILL)
    _limit(memory, seconds)
    _drop_capabilities()
    _call_prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _apply_landlock(readable)
    _apply_seccomp(more_calls)


def fork_alone() -> tuple[int, str]:
    """Fork into new user, process, network, IPC, mount and host name namespaces.

    Returns the child's process id (0 in the child), and the reason why the kernel refused new
    namespaces, "" if it did not. This calls clone directly, since after `unshare` this process
    could not start threads.
    """
    _PYTHON.PyOS_BeforeFork()
    child = _PYTHON.syscall(_CLONE, ctypes.c_ulong(_NAMESPACES | _SIGCHLD), None, None, None, None)
    refusal = "" if child >= 0 else _describe_error()
    if child == 0:
        _PYTHON.PyOS_AfterFork_Child()
        # In a separate user namespace, this limit counts only the threads of the program.
        _lower_limit(resource.RLIMIT_NPROC, MOST_THREADS)
        return 0, ""
    _PYTHON.PyOS_AfterFork_Parent()
    return (child, "") if child > 0 else (os.fork(), refusal)


def _limit(memory: int, seconds: int) -> None:
    for what, most in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_FSIZE, 2**20),  # limits the size of printed output
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_CORE, 0),
    ):
        _lower_limit(what, most)


def _lower_limit(what: int, most: int) -> None:
    _, there = resource.getrlimit(what)
    most = most if there == resource.RLIM_INFINITY else min(most, there)
    resource.setrlimit(what, (most, most))


def _drop_capabilities() -> None:
    """Drop all capabilities of this process.

    Without them, root can still open files that root owns, which Landlock forbids.
    """
    # A process in a new user namespace has all capabilities; others may have none to drop.
    for number in range(_LAST_CAPABILITY + 1):
        _LIBC.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0)  # fails for numbers unknown to the kernel
    header = ctypes.create_string_buffer(struct.pack("=Ii", 0x20080522, 0))
    nothing = ctypes.create_string_buffer(struct.pack("=6I", *[0] * 6))
    if _LIBC.syscall(_SYS_CAPSET, header, nothing):
        raise CannotConfine(f"capabilities cannot be dropped: {_describe_error()}")


def find_landlock_version() -> int:
    """Return the version of Landlock that is enabled in the kernel, or 0 if none is."""
    found = _LIBC.syscall(_SYS_CREATE_RULESET, None, ctypes.c_size_t(0), 1)
    return max(0, int(found))


def _apply_landlock(readable: Iterable[str]) -> None:
    version = find_landlock_version()
    if version < ABI_WANTED:
        raise CannotConfine(
            f"Landlock is not enabled ({_describe_error()}); it needs Linux 5.13 or newer"
        )
    rights = (1 << _FILE_RIGHTS[min(version, max(_FILE_RIGHTS))]) - 1
    table = struct.pack("=QQQ", rights, 3 if version >= 4 else 0, 3 if version >= 6 else 0)
    table = table[: 8 if version < 4 else 16 if version < 6 else 24]
    ruleset = _LIBC.syscall(
        _SYS_CREATE_RULESET, ctypes.create_string_buffer(table, len(table)), len(table), 0
    )
    if ruleset < 0:
        raise CannotConfine(f"the Landlock ruleset cannot be created: {_describe_error()}")
    for path in readable:
        _allow(ruleset, path, _READ_FILE | _READ_DIR)
    if _LIBC.syscall(_SYS_RESTRICT_SELF, ruleset, 0):
        raise CannotConfine(f"Landlock cannot be applied: {_describe_error()}")
    os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    if not os.path.exists(path):  # noqa: PTH110 - pathlib is not imported here
        return
    if not os.path.isdir(path):  # noqa: PTH112
        rights &= ~_READ_DIR
    place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    rule = ctypes.create_string_buffer(struct.pack("=Qi", rights, place), 12)
    if _LIBC.syscall(_SYS_ADD_RULE, ruleset, 1, rule, 0):
        raise CannotConfine(f"the Landlock rule for {path} cannot be added: {_describe_error()}")
    os.close(place)


def _apply_seccomp(more_calls: Iterable[int]) -> None:
    program = _build_filter(more_calls)
    code = ctypes.create_string_buffer(b"".join(program))
    head = struct.pack("=HxxxxxxQ", len(program), ctypes.addressof(code))
    if _LIBC.prctl(_PR_SET_SECCOMP, 2, ctypes.create_string_buffer(head, len(head)), 0, 0):
        raise CannotConfine(f"the seccomp filter cannot be applied: {_describe_error()}")


_EQUAL = 0x15
_AT_LEAST = 0x35
_ANY_BIT = 0x45


def _load(offset: int) -> bytes:
    return struct.pack("=HBBI", 0x20, 0, 0, offset)


def _skip(code: int, operand: int, if_true: int, if_false: int) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, operand)


def _end(action: int) -> bytes:
    return struct.pack("=HBBI", 0x06, 0, 0, action)


def _build_filter(more_calls: Iterable[int]) -> list[bytes]:
    """Return the seccomp filter as classic BPF instructions.

    An instruction is (code, jump if true, jump if false, operand).
    """
    program = [
        _load(4),  # architecture
        _skip(_EQUAL, _ARCHITECTURE, 1, 0),
        _end(_KILL),
        _load(0),  # number of the call
        _skip(_AT_LEAST, _FIRST_X32, 0, 1),
        _end(_KILL),
        _skip(_EQUAL, _CLONE3, 0, 1),
        _end(_ERRNO | _ENOSYS),  # makes the C library fall back on clone
        _skip(_EQUAL, _CLONE, 0, 5),
        _load(_ARGUMENTS),  # flags
        _skip(_ANY_BIT, 0xFFFFFFFF & ~_CLONE_FLAGS_OF_THREADS, 2, 0),
        _skip(_ANY_BIT, _CLONE_THREAD, 0, 1),
        _end(_ALLOW),  # a thread
        _end(_ERRNO | _EPERM),  # a process
    ]
    for number, words in CHECKED.items():
        checks: list[bytes] = []
        for word, values in words.items():
            checks.append(_load(_ARGUMENTS + 4 * word))
            for index, value in enumerate(values):
                checks.append(_skip(_EQUAL, value, len(values) - index, 0))
            checks.append(_end(_ERRNO | _EPERM))
        checks.append(_end(_ALLOW))
        program += [_skip(_EQUAL, number, 0, len(checks)), *checks]
    for number in sorted({*ALLOWED.values(), *more_calls}):
        program += [_skip(_EQUAL, number, 0, 1), _end(_ALLOW)]
    return [*program, _end(_ERRNO | _EPERM)]


def _call_prctl(option: int, value: int) -> None:
    if _LIBC.prctl(option, ctypes.c_ulong(value), 0, 0, 0):
        raise CannotConfine(f"prctl {option}: {_describe_error()}")


def _describe_error() -> str:
    return os.strerror(ctypes.get_errno())
