"""What the kernel is told so that this process can do nothing but compute: Landlock, seccomp,
limits and no capabilities.

It runs before the standard library's site is there (`python -I -S`), so it imports that library
alone, and not this package. Numbers are those of Linux on x86-64 (landlock(7), seccomp(2),
capabilities(7)).
"""

import ctypes
import os
import platform
import resource
import struct
from collections.abc import Iterable

ABI_WANTED = 1
_LIBC = ctypes.CDLL(None, use_errno=True)

_SYS_CREATE_RULESET, _SYS_ADD_RULE, _SYS_RESTRICT_SELF, _SYS_CAPSET = 444, 445, 446, 126
_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 1, 22, 24, 38
_SIGKILL = 9
_LAST_CAPABILITY = 63

# Rights of Landlock on files: execute, read a file, read a folder.
_EXECUTE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 2, 1 << 3
# All rights that each version knows: the first has 13 of files, the next add refer, truncate, -,
# ioctl; the fourth has two of the network; the sixth the scopes of signals and abstract sockets.
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}

# What an interpreter needs to compute, and no more: no socket, no process, no change of a file's
# attributes, no signal to others, no second look at memory.
ALLOWED = {
    "read": 0, "write": 1, "close": 3, "stat": 4, "fstat": 5, "lstat": 6, "poll": 7, "lseek": 8,
    "mmap": 9, "mprotect": 10, "munmap": 11, "brk": 12, "rt_sigaction": 13, "rt_sigprocmask": 14,
    "rt_sigreturn": 15, "ioctl": 16, "pread64": 17, "readv": 19, "writev": 20, "access": 21,
    "pipe": 22, "select": 23, "sched_yield": 24, "mremap": 25, "madvise": 28, "dup": 32,
    "dup2": 33, "nanosleep": 35, "getitimer": 36, "alarm": 37, "setitimer": 38, "getpid": 39,
    "execve": 59, "exit": 60, "uname": 63, "fcntl": 72, "getcwd": 79, "chdir": 80, "readlink": 89,
    "gettimeofday": 96, "getrlimit": 97, "getrusage": 98, "sysinfo": 99, "times": 100,
    "getuid": 102, "getgid": 104, "geteuid": 107, "getegid": 108, "getppid": 110,
    "sigaltstack": 131, "arch_prctl": 158, "gettid": 186, "time": 201, "futex": 202,
    "sched_getaffinity": 204, "getdents64": 217, "set_tid_address": 218, "restart_syscall": 219,
    "clock_gettime": 228, "clock_getres": 229, "clock_nanosleep": 230, "exit_group": 231,
    "epoll_wait": 232, "epoll_ctl": 233, "openat": 257, "newfstatat": 262, "readlinkat": 267,
    "pselect6": 270, "set_robust_list": 273, "get_robust_list": 274, "eventfd2": 290,
    "epoll_create1": 291, "dup3": 292, "pipe2": 293, "preadv": 295, "prlimit64": 302,
    "getrandom": 318, "statx": 332, "rseq": 334, "faccessat2": 439,
}  # fmt: skip
_CLONE, _CLONE3 = 56, 435
_CLONE_THREAD = 0x10000
_ARCHITECTURE = 0xC000003E  # AUDIT_ARCH_X86_64
_FIRST_X32 = 0x40000000
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_EPERM, _ENOSYS = 1, 38


class CannotConfine(Exception):
    """The kernel has not what it takes; the message says what."""


def confine(readable: Iterable[str], executable: Iterable[str], memory: int, seconds: int) -> None:
    """Leave this process, and what it becomes, nothing but to compute.

    `readable` are folders and files that it may read, `executable` files that it may become;
    `memory` in bytes of address space; `seconds` of the CPU. Raises CannotConfine.
    """
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        raise CannotConfine(f"{platform.system()} on {platform.machine()}, not Linux on x86_64")
    _call_prctl(_PR_SET_PDEATHSIG, _SIGKILL)
    _limit(memory, seconds)
    if os.geteuid() == 0:
        _drop_capabilities()
    _call_prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _apply_landlock(readable, executable)
    _apply_seccomp()


def _limit(memory: int, seconds: int) -> None:
    for what, most in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_FSIZE, 2**20),  # of what it prints
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_CORE, 0),
    ):
        _, there = resource.getrlimit(what)
        most = most if there == resource.RLIM_INFINITY else min(most, there)
        resource.setrlimit(what, (most, most))


def _drop_capabilities() -> None:
    """Root without capabilities can still open what root owns, which Landlock forbids."""
    for number in range(_LAST_CAPABILITY + 1):
        _LIBC.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0)  # fails past the last that the kernel knows
    header = ctypes.create_string_buffer(struct.pack("=Ii", 0x20080522, 0))
    nothing = ctypes.create_string_buffer(struct.pack("=6I", *[0] * 6))
    if _LIBC.syscall(_SYS_CAPSET, header, nothing):
        raise CannotConfine(f"capabilities cannot be dropped: {_describe_error()}")


def find_landlock_version() -> int:
    """The version of Landlock that the kernel has on; 0: none."""
    found = _LIBC.syscall(_SYS_CREATE_RULESET, None, ctypes.c_size_t(0), 1)
    return max(0, int(found))


def _apply_landlock(readable: Iterable[str], executable: Iterable[str]) -> None:
    version = find_landlock_version()
    if version < ABI_WANTED:
        raise CannotConfine(f"Landlock is not on ({_describe_error()}); Linux has it since 5.13")
    rights = (1 << _FILE_RIGHTS[min(version, max(_FILE_RIGHTS))]) - 1
    table = struct.pack("=QQQ", rights, 3 if version >= 4 else 0, 3 if version >= 6 else 0)
    table = table[: 8 if version < 4 else 16 if version < 6 else 24]
    ruleset = _LIBC.syscall(
        _SYS_CREATE_RULESET, ctypes.create_string_buffer(table, len(table)), len(table), 0
    )
    if ruleset < 0:
        raise CannotConfine(f"no Landlock ruleset: {_describe_error()}")
    for path in readable:
        _allow(ruleset, path, _READ_FILE | _EXECUTE | _READ_DIR)
    for path in executable:
        _allow(ruleset, path, _READ_FILE | _EXECUTE)
    if _LIBC.syscall(_SYS_RESTRICT_SELF, ruleset, 0):
        raise CannotConfine(f"Landlock refuses: {_describe_error()}")
    os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    if not os.path.exists(path):  # noqa: PTH110 - pathlib is not imported here
        return
    if not os.path.isdir(path):  # noqa: PTH112
        rights &= ~_READ_DIR
    place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    rule = ctypes.create_string_buffer(struct.pack("=Qi", rights, place), 12)
    if _LIBC.syscall(_SYS_ADD_RULE, ruleset, 1, rule, 0):
        raise CannotConfine(f"no Landlock rule for {path}: {_describe_error()}")
    os.close(place)


def _apply_seccomp() -> None:
    program = _filter()
    code = ctypes.create_string_buffer(b"".join(program))
    head = struct.pack("=HxxxxxxQ", len(program), ctypes.addressof(code))
    if _LIBC.prctl(_PR_SET_SECCOMP, 2, ctypes.create_string_buffer(head, len(head)), 0, 0):
        raise CannotConfine(f"seccomp refuses: {_describe_error()}")


def _filter() -> list[bytes]:
    """The filter in classic BPF: instructions of (code, jump if true, jump if false, operand)."""

    def load(offset: int) -> bytes:
        return struct.pack("=HBBI", 0x20, 0, 0, offset)

    def skip(code: int, operand: int, if_true: int, if_false: int) -> bytes:
        return struct.pack("=HBBI", code, if_true, if_false, operand)

    def end(action: int) -> bytes:
        return struct.pack("=HBBI", 0x06, 0, 0, action)

    equal, at_least, any_bit = 0x15, 0x35, 0x45
    program = [
        load(4),  # architecture
        skip(equal, _ARCHITECTURE, 1, 0),
        end(_KILL),
        load(0),  # number of the call
        skip(at_least, _FIRST_X32, 0, 1),
        end(_KILL),
        skip(equal, _CLONE3, 0, 1),
        end(_ERRNO | _ENOSYS),  # so that the C library falls back on clone
        skip(equal, _CLONE, 0, 4),
        load(16),  # flags, the first argument
        skip(any_bit, _CLONE_THREAD, 0, 1),
        end(_ALLOW),  # a thread
        end(_ERRNO | _EPERM),  # a process
    ]
    for number in sorted(ALLOWED.values()):
        program += [skip(equal, number, 0, 1), end(_ALLOW)]
    return [*program, end(_ERRNO | _EPERM)]


def _call_prctl(option: int, value: int) -> None:
    if _LIBC.prctl(option, ctypes.c_ulong(value), 0, 0, 0):
        raise CannotConfine(f"prctl {option}: {_describe_error()}")


def _describe_error() -> str:
    return os.strerror(ctypes.get_errno())
