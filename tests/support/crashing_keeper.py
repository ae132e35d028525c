"""Keepers that die while they create: `python -m support.crashing_keeper URL FOLDER`.

One process for each moment.
They kill themselves with SIGKILL, so that nothing is unwound and nothing flushed. Each is forked
here: loading the program again for each of them would take most of the time.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import sys
import threading
from pathlib import Path

from sandkeeper.domain.policy import Policy
from sandkeeper.providers.base import CreateSpec, Instance
from sandkeeper.store import open_store
from sandkeeper.testing.providers import SimulatedProvider
from support.deps import make_deps
from support.sweep_replica import Replica

DEATHS = 50
AT_ONCE = 5
# Of every five, one dies before the provider has the instance, one before it hears of it, and three
# at moments from there to beyond the commit, this far apart.
STEP_S = 0.0003
AWAKE = Policy(idle_timeout_s=None, lifetime_s=None)


def project(number: int) -> str:
    return f"p{number}"


class OutlivingProvider(SimulatedProvider):
    """Keeps its instances in a folder, where they outlive the keeper."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        for file in folder.glob("*.whole"):
            self.instances[file.stem] = pickle.loads(file.read_bytes())

    async def create(self, spec: CreateSpec) -> Instance:
        made = await super().create(spec)
        # An instance is there or not, whenever its keeper dies.
        half = self._folder / f"{made.instance_id}.half"
        half.write_bytes(pickle.dumps(self.instances[made.instance_id]))
        half.rename(half.with_suffix(".whole"))
        return made


class DeadlyProvider(OutlivingProvider):
    """Kills the keeper that creates, at the moment of this number."""

    def __init__(self, folder: Path, number: int) -> None:
        super().__init__(folder)
        self._number = number

    async def create(self, spec: CreateSpec) -> Instance:
        if self._number % 5 == 0:
            die()
        made = await super().create(spec)
        if self._number % 5 == 1:
            die()
        threading.Timer(self._number * STEP_S, die).start()
        return made


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def create_and_die(url: str, folder: Path, number: int) -> None:
    async with open_store(url, migrate=False) as store:
        provider = DeadlyProvider(folder, number)
        deps = make_deps(store, provider, replica=f"dying-{number}", lease_s=30)
        keeper = Replica(deps)
        await keeper.create(project(number), AWAKE)
        await asyncio.Event().wait()


def main(url: str, folder: Path) -> None:
    for first in range(0, DEATHS, AT_ONCE):
        children = []
        for number in range(first, first + AT_ONCE):
            child = os.fork()
            if child == 0:
                asyncio.run(create_and_die(url, folder, number))
                os._exit(1)
            children.append(child)
        for child in children:
            _, status = os.waitpid(child, 0)
            assert os.WIFSIGNALED(status), f"one ended by itself: {status}"
            assert os.WTERMSIG(status) == signal.SIGKILL


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
