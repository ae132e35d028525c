"""Fixtures of the tests about names and TLS.

tls_engine  an engine with TLS, one for the worker
tls_env     the environment that `sandkeeper engine env --tls` prints for it
"""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from support.base_cache import lend_base
from support.engine_process import Engine


@pytest.fixture(scope="session")
def tls_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    data = lend_base(tmp_path_factory, tmp_path_factory.mktemp("tls") / "data")
    running = Engine(data, "--tls")
    try:
        yield running.start()
    finally:
        running.stop()


@pytest.fixture
def tls_env(tls_engine: Engine) -> dict[str, str]:
    try:
        socket.getaddrinfo("3000-example.localhost", 80)
    except OSError:
        pytest.skip("*.localhost does not resolve here: install libnss-myhostname")
    return tls_engine.read_tls_env()
