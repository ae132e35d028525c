"""The veth backend, on a machine of its own: its network, its /run, its resolver.

The tests are in `own_machine.py`, which is not collected: they change addresses, routes and the
packet filter, so they run in their own namespaces.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sandkeeper.engine.runtime.egress import veth
from support.isolation import not_on_gvisor
from support.process_leaks import end_all, list_spawned_for

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parents[2]
AT_LEAST = 16
IN_A_MACHINE_OF_ITS_OWN = """
mount -t tmpfs tmpfs /run && mount --bind "$1" /etc/resolv.conf || exit 1
ip link set lo up || exit 1
shift; exec "$@"
"""


@not_on_gvisor("`ip route` inside shows the start's routes; test_escapes.py tries each backend")
@pytest.mark.timeout(600)
@pytest.mark.skipif(os.geteuid() != 0, reason="network devices need root")
@pytest.mark.skipif(veth.find_nft() is None, reason="nft is not installed")
@pytest.mark.skipif(shutil.which("ip") is None, reason="ip is not installed")
def test_a_device_is_a_way_out_and_nothing_else(tmp_path: Path) -> None:
    resolver = tmp_path / "resolv.conf"
    resolver.write_text("nameserver 127.0.0.53\nnameserver 192.88.99.53\n")
    line = [sys.executable, "-m", "pytest", f"{HERE}/own_machine.py", "-q", "-x"]
    line += ["-p", "no:cacheprovider", f"--basetemp={tmp_path}/t"]
    apart = ["unshare", "--net", "--mount", "sh", "-c", IN_A_MACHINE_OF_ITS_OWN, "sh"]
    try:
        said = subprocess.run(
            [*apart, str(resolver), *line],
            capture_output=True,
            text=True,
            check=False,
            timeout=570,
            cwd=PROJECT,
        )
    finally:
        for data in list_spawned_for(tmp_path):
            end_all(data)
    assert said.returncode == 0, said.stdout[-6000:] + said.stderr[-2000:]
    passed = int(said.stdout.rpartition(" passed")[0].split()[-1])
    assert passed >= AT_LEAST, said.stdout
