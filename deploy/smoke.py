#!/usr/bin/env python3
"""Start what `deploy/compose.yaml` starts, without a container engine, and prove that it works.

`make smoke` installs what it needs and runs this. PostgreSQL, Caddy, Prometheus and Alertmanager
come from Debian, the bucket is moto, and the provider is the local engine. They read the files of
this folder; only addresses are replaced, and Prometheus is told the two replicas, because its DNS
discovery asks a name server. Everything listens on loopback and is gone at the end.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pwd
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import httpx

DEPLOY = Path(__file__).resolve().parent
BIN = Path(sys.executable).parent
MOTO = BIN.parent / "smoke" / "bin" / "moto_server"
KEY = "sk_smoke"
ENCRYPTION_KEY = "c2FuZGtlZXBlci10ZXN0LWVuY3J5cHRpb24ta2V5ISE="
PROJECT = "smoke"
CONTENT = bytes(range(256)) * 5000


def find_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def tell(text: str) -> None:
    print(f"{time.monotonic() - BEGUN:6.1f} s  {text}", flush=True)


def wait_for(what: str, condition: Callable[[], object], *, within_s: float = 60) -> object:
    """Return the first true value; end the run if there is none in time."""
    deadline = time.monotonic() + within_s
    problem: object = None
    while time.monotonic() < deadline:
        try:
            value = condition()
        except (httpx.HTTPError, OSError, KeyError, ValueError) as error:
            problem = error
        else:
            if value:
                tell(f"ok: {what}")
                return value
            problem = value
        time.sleep(0.2)
    raise SystemExit(f"FAILED: {what}: {problem!r}")


def find_program(*names: str) -> str:
    for name in names:
        found = shutil.which(name) or next(iter(sorted(Path("/").glob(name.lstrip("/")))), None)
        if found:
            return str(found)
    raise SystemExit(f"{names[0]} is missing: run `make smoke`, which installs it where it can.")


class Machine:
    """The processes of one run, ended in the order in which the last began first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._stack = contextlib.ExitStack()
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *words: str, env: Mapping[str, str] | None = None) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                words, stdout=log, stderr=log, env={**os.environ, **(env or {})}, cwd=self.folder
            )
        self._running[name] = process
        self._stack.callback(self._end, process)

    def kill(self, name: str) -> None:
        """End it as a power cut would."""
        self._running[name].kill()
        self._running[name].wait()

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def check(self) -> None:
        for name, process in self._running.items():
            if process.poll() not in (None, -9):
                raise SystemExit(f"FAILED: {name} ended:\n{self.log(name)[-2000:]}")

    def close(self) -> None:
        self._stack.close()

    @staticmethod
    def _end(process: subprocess.Popen[bytes]) -> None:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()


def start_postgresql(machine: Machine) -> str:
    """PostgreSQL refuses to run as root: it gets a user of its own then."""
    binaries = Path(find_program("/usr/lib/postgresql/*/bin/initdb")).parent
    data, port = machine.folder / "postgresql", find_port()
    as_user: list[str] = []
    if os.getuid() == 0:
        account = pwd.getpwnam("postgres")
        data.mkdir()
        os.chown(data, account.pw_uid, account.pw_gid)
        as_user = [
            "setpriv",
            f"--reuid={account.pw_uid}",
            f"--regid={account.pw_gid}",
            "--clear-groups",
        ]
    setup = [*as_user, str(binaries / "initdb"), "-D", str(data), "-U", "sandkeeper", "-A", "trust"]
    subprocess.run(setup, check=True, capture_output=True, cwd="/")
    options = ["-p", str(port), "-k", "", "-h", "127.0.0.1"]
    machine.start("postgresql", *as_user, str(binaries / "postgres"), "-D", str(data), *options)
    ready = [str(binaries / "pg_isready"), "-h", "127.0.0.1", "-p", str(port), "-q"]
    wait_for("PostgreSQL answers", lambda: subprocess.run(ready, check=False).returncode == 0)
    return f"postgresql://sandkeeper@127.0.0.1:{port}/postgres"


def start_bucket(machine: Machine) -> str:
    port = find_port()
    machine.start("bucket", str(MOTO), "-H", "127.0.0.1", "-p", str(port))
    url = f"http://127.0.0.1:{port}"
    wait_for("the bucket is there", lambda: httpx.put(f"{url}/sandkeeper").status_code == 200)
    return url


def list_objects(url: str) -> list[str]:
    return re.findall(r"<Key>([^<]+)</Key>", httpx.get(f"{url}/sandkeeper?list-type=2").text)


def start_engine(machine: Machine) -> dict[str, str]:
    data, port = machine.folder / "engine-data", find_port()
    words = ["engine", "--data", str(data), "--port", str(port)]
    machine.start("engine", str(BIN / "sandkeeper"), *words)
    wait_for("the engine answers", lambda: "engine ready at" in machine.log("engine"))
    url = f"http://127.0.0.1:{port}"
    key = (data / "engine.key").read_text().strip()
    return {"E2B_API_URL": url, "E2B_SANDBOX_URL": url, "E2B_API_KEY": key}


def start_keepers(
    machine: Machine, database: str, bucket: str, provider: dict[str, str]
) -> list[int]:
    ports = [find_port(), find_port()]
    for number, port in enumerate(ports, 1):
        environment = {
            **provider,
            "SANDKEEPER_DATABASE": database,
            "SANDKEEPER_OPERATOR_KEY": KEY,
            "SANDKEEPER_ENCRYPTION_KEY": ENCRYPTION_KEY,
            "SANDKEEPER_FILES_URL": "s3://sandkeeper/files",
            "SANDKEEPER_PUBLIC_METRICS": "true",
            "SANDKEEPER_DATA": str(machine.folder / f"keeper-{number}-data"),
            "SANDKEEPER_PORT": str(port),
            "SANDKEEPER_LOG_FORMAT": "json",
            "AWS_ENDPOINT_URL": bucket,
            "AWS_ACCESS_KEY_ID": "sandkeeper",
            "AWS_SECRET_ACCESS_KEY": "sandkeeper",
            "AWS_REGION": "us-east-1",
        }
        machine.start(f"keeper-{number}", str(BIN / "sandkeeper"), "serve", env=environment)
    for number, port in enumerate(ports, 1):
        wait_for(
            f"keeper {number} is ready",
            lambda port=port: httpx.get(f"http://127.0.0.1:{port}/readyz").status_code == 200,
        )
    return ports


def start_caddy(machine: Machine, keepers: list[int]) -> str:
    port = find_port()
    environment = {
        "SANDKEEPER_SITE": f"https://localhost:{port}",
        "SANDKEEPER_HTTP_PORT": str(find_port()),
        "SANDKEEPER_UPSTREAMS": " ".join(f"127.0.0.1:{one}" for one in keepers),
        "XDG_DATA_HOME": str(machine.folder),
        "XDG_CONFIG_HOME": str(machine.folder),
    }
    words = ["run", "--adapter", "caddyfile", "--config", str(DEPLOY / "Caddyfile")]
    machine.start("caddy", find_program("caddy"), *words, env=environment)
    root = machine.folder / "caddy" / "pki" / "authorities" / "local" / "root.crt"
    wait_for("Caddy has a certificate", root.exists)
    os.environ["SSL_CERT_FILE"] = str(root)
    url = f"https://localhost:{port}"
    wait_for("Caddy passes requests on", lambda: httpx.get(f"{url}/readyz").status_code == 200)
    assert httpx.get(f"{url}/metrics").status_code == 404
    return url


def start_monitoring(machine: Machine, keepers: list[int]) -> tuple[str, str]:
    alerting, metrics = find_port(), find_port()
    config = (DEPLOY / "prometheus.yaml").read_text()
    targets = json.dumps([{"targets": [f"127.0.0.1:{one}" for one in keepers]}])
    config = re.sub(r"dns_sd_configs: .*", f"static_configs: {targets}", config)
    config = config.replace("alertmanager:9093", f"127.0.0.1:{alerting}")
    (machine.folder / "prometheus.yaml").write_text(config)
    shutil.copy(DEPLOY / "prometheus-rules.yaml", machine.folder)
    machine.start(
        "alertmanager",
        find_program("prometheus-alertmanager", "alertmanager"),
        f"--config.file={DEPLOY / 'alertmanager.yaml'}",
        f"--web.listen-address=127.0.0.1:{alerting}",
        f"--storage.path={machine.folder / 'alerts'}",
        "--cluster.listen-address=",
    )
    machine.start(
        "prometheus",
        find_program("prometheus"),
        f"--config.file={machine.folder / 'prometheus.yaml'}",
        f"--web.listen-address=127.0.0.1:{metrics}",
        f"--storage.tsdb.path={machine.folder / 'series'}",
    )
    return f"http://127.0.0.1:{metrics}", f"http://127.0.0.1:{alerting}"


def query(prometheus: str, expression: str) -> list[float]:
    found = httpx.get(f"{prometheus}/api/v1/query", params={"query": expression}).json()
    return [float(one["value"][1]) for one in found["data"]["result"]]


def live(api: httpx.Client) -> str:
    return str(api.get(f"/api/sandboxes/{PROJECT}/status").json()["status"])


def examine(url: str) -> None:
    """Let `sandkeeper doctor` look from outside, through Caddy."""
    done = subprocess.run(
        [str(BIN / "sandkeeper"), "doctor", "--json", "--url", url],
        env={**os.environ, "SANDKEEPER_OPERATOR_KEY": KEY},
        capture_output=True,
        text=True,
        check=False,
    )
    found = {one["name"]: one for one in map(json.loads, done.stdout.splitlines())}
    for name in ("TLS", "health", "clock", "version", "webhooks", "metrics", "live streams"):
        if not found[name]["ok"]:
            raise SystemExit(f"FAILED: doctor: {found[name]}")
    tell(f"ok: doctor has no finding; TLS: {found['TLS']['finding']}")


def drive(machine: Machine, api: httpx.Client, bucket: str, prometheus: str, alerts: str) -> None:
    """Use it as a host application does, and break one replica."""
    made = api.put(f"/api/sandboxes/{PROJECT}", json={"policy": {"idleTimeoutMs": 600_000}})
    assert made.status_code == 201, made.text
    assert api.put(f"/api/sandboxes/{PROJECT}/files/kept.bin", content=CONTENT).is_success
    assert api.post(f"/api/sandboxes/{PROJECT}/pause").is_success
    wait_for("the sandbox sleeps", lambda: live(api) == "PAUSED")
    wait_for("its files are in the bucket", lambda: len(list_objects(bucket)) > 1)
    assert api.post(f"/api/sandboxes/{PROJECT}/wake", params={"wait": "60"}).is_success
    wait_for("a wake brings it back", lambda: live(api) == "RUNNING")
    wait_for(
        "Prometheus scrapes both replicas",
        lambda: query(prometheus, 'count(up{job="sandkeeper"} == 1)') == [2.0],
    )
    wait_for(
        "and has their series",
        lambda: query(prometheus, "count(sandkeeper_provider_up)") == [2.0],
    )
    examine(str(api.base_url).rstrip("/"))
    machine.kill("keeper-1")
    tell("keeper 1 is killed")
    for _ in range(20):
        assert api.get(f"/api/sandboxes/{PROJECT}/status").status_code == 200
    tell("ok: 20 requests in a row are answered by the other one")
    content = api.get(f"/api/sandboxes/{PROJECT}/files/kept.bin").content
    assert hashlib.sha256(content).digest() == hashlib.sha256(CONTENT).digest()
    tell("ok: and the file has its hash")
    assert api.post(f"/api/sandboxes/{PROJECT}/pause").is_success
    wait_for("it pauses, too", lambda: live(api) == "PAUSED")
    wait_for(
        "SandkeeperReplicaDown fires at Alertmanager",
        lambda: [
            one
            for one in httpx.get(f"{alerts}/api/v2/alerts").json()
            if one["labels"]["alertname"] == "SandkeeperReplicaDown"
            and one["annotations"]["runbook"]
        ],
        within_s=240,
    )
    assert api.delete(f"/api/sandboxes/{PROJECT}").is_success


@contextlib.contextmanager
def running() -> Iterator[Machine]:
    folder = Path(tempfile.mkdtemp(prefix="sandkeeper-smoke-"))
    folder.chmod(0o755)
    machine = Machine(folder)
    try:
        yield machine
        machine.check()
    except BaseException:
        for log in sorted(folder.glob("*.log")):
            print(f"--- {log.name}\n{log.read_text(errors='replace')[-1500:]}", file=sys.stderr)
        raise
    finally:
        machine.close()
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    with running() as machine:
        database = start_postgresql(machine)
        bucket = start_bucket(machine)
        provider = start_engine(machine)
        keepers = start_keepers(machine, database, bucket, provider)
        url = start_caddy(machine, keepers)
        prometheus, alerts = start_monitoring(machine, keepers)
        headers = {"Authorization": f"Bearer {KEY}"}
        with httpx.Client(base_url=url, headers=headers, timeout=90) as api:
            drive(machine, api, bucket, prometheus, alerts)
    tell("all of deploy/ works")


if __name__ == "__main__":
    BEGUN = time.monotonic()
    main()
