"""Ways out of a sandbox, each tried by an access check. Run inside; the answer is JSON.

A probe that is refused raises an exception; its name is the exception's. A probe that gets through
is reported as `OPEN`. Nothing is changed: files are opened and not written, calls get arguments
that do nothing where they are allowed.

The first argument is JSON: `files` (paths of the host), `ports` (host ports), `addresses`.
"""

import ctypes
import json
import os
import platform
import socket
import sys
from pathlib import Path

LIBC = ctypes.CDLL(None, use_errno=True)
X86 = platform.machine() == "x86_64"
GIVEN = json.loads(sys.argv[1])
PROBES = {}


class RefusedError(Exception):
    """The kernel said no."""


def call(name, number, *arguments):
    """Make a system call by its number; a result below zero is a refusal."""

    def probe():
        ctypes.set_errno(0)
        if LIBC.syscall(number, *arguments) < 0:
            raise RefusedError(os.strerror(ctypes.get_errno()))

    PROBES[f"call {name}"] = probe


def read(path):
    def probe():
        with Path(path).open("rb") as file:
            if not file.read(1):
                raise RefusedError("it is empty")

    PROBES[f"read {path}"] = probe


def write(path):
    def probe():
        flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY
        os.close(os.open(path, flags))
        if Path(path).stat().st_rdev == os.makedev(1, 3):
            raise RefusedError("it is the null device")

    PROBES[f"write {path}"] = probe


def make_socket(name, family, kind, protocol=0):
    def probe():
        socket.socket(family, kind, protocol).close()

    PROBES[f"socket {name}"] = probe


def connect(host, port):
    def probe():
        socket.create_connection((host, port), timeout=0.5).close()

    PROBES[f"connect {host}:{port}"] = probe


NULL = ctypes.c_void_p(None)
BAD = ctypes.c_long(-1)
ME = os.getpid()

if X86:
    # Numbers that only x86_64 has; the list below covers the rest of both machines.
    call("iopl", 172, 3)
    call("ioperm", 173, 0x80, 1, 1)
    call("modify_ldt write", 154, 1, NULL, 0)
    call("uselib", 134, b"/bin/true")
    call("ustat", 136, Path("/").stat().st_dev, NULL)

# Each with its number on x86_64, on aarch64, and its arguments.
NUMBERS = {
    "acct": (163, 89, (NULL,)),
    "add_key": (248, 217, (b"user", b"probe", b"x", 1, -3)),
    "request_key": (249, 218, (b"user", b"probe", NULL, -3)),
    "keyctl": (250, 219, (0, -3, 0)),
    "adjtimex set": (159, 171, (ctypes.create_string_buffer(256),)),
    "clock_adjtime": (305, 266, (0, ctypes.create_string_buffer(256))),
    "clock_settime": (227, 112, (0, ctypes.create_string_buffer(16))),
    "settimeofday": (164, 170, (NULL, NULL)),
    "bpf map": (321, 280, (0, ctypes.create_string_buffer(72), 72)),
    "bpf prog": (321, 280, (5, ctypes.create_string_buffer(72), 72)),
    "chroot": (161, 51, (b"/",)),
    "pivot_root": (155, 41, (b"/", b"/")),
    "mount": (165, 40, (b"none", b"/tmp", b"tmpfs", 0, NULL)),
    "mount bind": (165, 40, (b"/", b"/tmp", NULL, 4096, NULL)),
    "mount remount": (165, 40, (NULL, b"/", NULL, 32, NULL)),
    "umount2": (166, 39, (b"/proc", 2)),
    "fsopen": (430, 430, (b"tmpfs", 0)),
    "fsmount": (432, 432, (-1, 0, 0)),
    "fspick": (433, 433, (-100, b"/", 0)),
    "open_tree": (428, 428, (-100, b"/", 1)),
    "move_mount": (429, 429, (-100, b"/", -100, b"/tmp", 0)),
    "mount_setattr": (442, 442, (-100, b"/", 0, NULL, 0)),
    "setns": (308, 268, (0, 0)),
    "init_module": (175, 105, (NULL, 0, b"")),
    "finit_module": (313, 273, (-1, b"", 0)),
    "delete_module": (176, 106, (b"none", 2048)),
    "kexec_load": (246, 104, (0, 0, NULL, 0)),
    "kexec_file_load": (320, 294, (-1, -1, 0, NULL, 0)),
    "reboot": (169, 142, (0, 0, 0, NULL)),
    "swapon": (167, 224, (b"/none", 0)),
    "swapoff": (168, 225, (b"/none",)),
    "quotactl": (179, 60, (0, NULL, 0, NULL)),
    "quotactl_fd": (443, 443, (-1, 0, 0, NULL)),
    "sethostname": (170, 161, (b"probe", 5)),
    "setdomainname": (171, 162, (b"probe", 5)),
    "vhangup": (153, 58, ()),
    "open_by_handle_at": (304, 265, (-100, NULL, 0)),
    "lookup_dcookie": (212, 18, (0, NULL, 0)),
    "perf_event_open": (298, 241, (ctypes.create_string_buffer(120), 0, -1, -1, 0)),
    "userfaultfd": (323, 282, (0,)),
    "io_uring_setup": (425, 425, (1, ctypes.create_string_buffer(120))),
    "io_uring_enter": (426, 426, (-1, 0, 0, 0, NULL, 0)),
    "io_uring_register": (427, 427, (-1, 0, NULL, 0)),
    "fanotify_init": (300, 262, (0, 0)),
    "syslog read": (103, 116, (3, ctypes.create_string_buffer(16), 16)),
    "syslog clear": (103, 116, (5, NULL, 0)),
    "ptrace first": (101, 117, (16, 1, NULL, NULL)),
    "process_vm_readv first": (310, 270, (1, NULL, 0, NULL, 0, 0)),
    "process_vm_writev first": (311, 271, (1, NULL, 0, NULL, 0, 0)),
    "kcmp first": (312, 272, (ME, 1, 0, 0, 0)),
    "pidfd_getfd": (438, 438, (-1, 0, 0)),
    "setpriority above": (141, 140, (0, 0, -20)),
    "mknod block": (133 if X86 else 33, 33, (b"/tmp/probe-b", 0o60600, 0x0800)),
}
FLAGS = {
    "mount": 0x00020000,
    "cgroup": 0x02000000,
    "uts": 0x04000000,
    "ipc": 0x08000000,
    "user": 0x10000000,
    "pid": 0x20000000,
    "net": 0x40000000,
    "time": 0x00000080,
}
for name, (x86, arm, arguments) in NUMBERS.items():
    if name == "mknod block" and not X86:
        continue
    call(name, x86 if X86 else arm, *arguments)
for name, flag in FLAGS.items():
    call(f"unshare {name}", 272 if X86 else 97, flag)

for path in GIVEN["files"]:
    read(path)
    for root in (
        "/proc/1/root",
        "/proc/self/root",
        "/proc/1/cwd",
        "/..",
        "/proc/self/cwd/../../..",
    ):
        read(root + path)

for name in [
    "mem",
    "kmem",
    "port",
    "core",
    "kvm",
    "fuse",
    "loop-control",
    "loop0",
    "sda",
    "vda",
    "nvme0",
    "dm-0",
    "mapper/control",
    "snapshot",
    "uinput",
    "uhid",
    "rtc0",
    "watchdog",
    "console",
    "tty0",
    "ttyS0",
    "hpet",
    "cpu_dma_latency",
    "vhost-net",
    "vhost-vsock",
    "net/tun",
    "kmsg",
    "userfaultfd",
    "autofs",
    "btrfs-control",
    "dri/card0",
    "input/event0",
    "vfio/vfio",
    "vcs",
    "mcelog",
]:
    read(f"/dev/{name}")
    write(f"/dev/{name}")
for path in [
    "/proc/kcore",
    "/proc/kmsg",
    "/proc/keys",
    "/proc/key-users",
    "/proc/timer_list",
    "/proc/sched_debug",
    "/proc/sysrq-trigger",
    "/proc/mtrr",
    "/proc/latency_stats",
    "/proc/1/mem",
    "/proc/1/environ",
    "/proc/1/maps",
    "/proc/kpagecount",
    "/proc/kpageflags",
    "/proc/vmallocinfo",
    "/proc/slabinfo",
]:
    write(path)
for path in ["/proc/kcore", "/proc/kmsg", "/proc/sysrq-trigger", "/proc/kpagecount", "/proc/keys"]:
    read(path)
for path in [
    "kernel/core_pattern",
    "kernel/modprobe",
    "kernel/hostname",
    "kernel/panic",
    "kernel/sysrq",
    "kernel/unprivileged_bpf_disabled",
    "kernel/kptr_restrict",
    "kernel/ns_last_pid",
    "vm/drop_caches",
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "vm/mmap_min_addr",
    "fs/file-max",
    "fs/suid_dumpable",
    "fs/protected_hardlinks",
    "net/ipv4/ip_forward",
    "net/ipv4/ping_group_range",
    "user/max_user_namespaces",
    "fs/binfmt_misc/register",
    "dev/cdrom/info",
]:
    write(f"/proc/sys/{path}")
for path in [
    "/sys/kernel/uevent_helper",
    "/sys/kernel/security/apparmor/.load",
    "/sys/fs/cgroup/cgroup.procs",
    "/sys/fs/cgroup/release_agent",
    "/sys/kernel/debug/tracing/trace",
    "/sys/power/state",
    "/sys/firmware/efi/efivars",
    "/sys/module/kernel/parameters/panic",
    "/sys/class/net",
]:
    write(path)
    read(path)

make_socket("raw", socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
make_socket("raw6", socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
make_socket("packet", 17, socket.SOCK_RAW)
make_socket("key", 15, socket.SOCK_RAW, 2)
for name, family in {
    "vsock": 40,
    "alg": 38,
    "bluetooth": 31,
    "can": 29,
    "tipc": 30,
    "rds": 21,
}.items():
    make_socket(name, family, socket.SOCK_SEQPACKET if name != "vsock" else socket.SOCK_STREAM)
for number, name in {9: "audit", 12: "netfilter", 6: "xfrm", 15: "uevent", 19: "rdma"}.items():
    make_socket(f"netlink {name}", socket.AF_NETLINK, socket.SOCK_RAW, number)
for path in [
    "/run/docker.sock",
    "/var/run/docker.sock",
    "/run/containerd/containerd.sock",
    "/run/podman/podman.sock",
    "/run/dbus/system_bus_socket",
    "/run/systemd/private",
    "/run/systemd/notify",
    "/tmp/.X11-unix/X0",
]:

    def dial(path=path):
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)

    PROBES[f"connect {path}"] = dial
for port in GIVEN["ports"]:
    for host in ("127.0.0.1", "localhost", "::1", *GIVEN["addresses"]):
        connect(host, port)
for host in ("169.254.169.254", "169.254.170.2", "fd00:ec2::254", "metadata.google.internal"):
    connect(host, 80)
for number in range(2, 400):

    def signal(number=number):
        os.kill(number, 0)
        with Path(f"/proc/{number}/comm").open() as file:
            name = file.read()
        raise RefusedError(f"one of our own: {name}")

    if number not in (ME, os.getppid()) and number % 40 == 0:
        PROBES[f"signal {number}"] = signal

ANSWERS = {}
for name, probe in PROBES.items():
    try:
        probe()
    except Exception as error:  # noqa: BLE001 - Any refusal counts.
        ANSWERS[name] = f"{type(error).__name__}: {error}"[:80]
    else:
        ANSWERS[name] = "OPEN"
print(json.dumps(ANSWERS))
