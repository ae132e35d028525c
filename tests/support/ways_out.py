"""The ways out of a sandbox that `escape_probes.py` tries, and those of them that lead nowhere."""

from __future__ import annotations

from pathlib import Path

from support.isolation import IS_GVISOR

AT_LEAST = 150
SCRIPT = Path(__file__).resolve().parent / "escape_probes.py"
# Every program may open these; what they reach is the sandbox's own network.
OWN_NETWORK = {f"socket netlink {name}" for name in ("audit", "netfilter", "xfrm", "uevent")}
# With no memory named these do nothing, and are not refused.
HARMLESS = {"call process_vm_readv first", "call process_vm_writev first"}
# The first process is the sandbox's own, and has no more rights than its root.
OWN_PROCESSES = {
    "call kcmp first",
    "call ptrace first",
    *(f"write /proc/1/{name}" for name in ("environ", "maps", "mem")),
}
# Kept by the sentry for the sandbox alone, so they reach no other keys, namespaces or log.
OF_GVISORS_KERNEL = {
    "call io_uring_setup",
    "call keyctl",
    "call setpriority above",
    "call syslog read",
    *(f"call unshare {name}" for name in ("cgroup", "mount", "net", "pid", "time", "user")),
    "write /dev/fuse",
    "write /proc/sysrq-trigger",
}
ALLOWED = OWN_NETWORK | HARMLESS | (OF_GVISORS_KERNEL if IS_GVISOR else set())
