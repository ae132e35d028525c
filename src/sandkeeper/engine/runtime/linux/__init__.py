"""Linux system interfaces: syscalls, cgroups, seccomp, netlink."""
