"""The benchmarks: an error in one part does not cost the figures of the others."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from bench import report as reports
from bench.browser import weigh
from bench.report import Report, Row


def test_a_part_that_fails_is_named_beside_the_rows_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(reports, "RESULTS", tmp_path)
    report = Report()
    with report.measuring("browser"):
        raise RuntimeError("there is no browser")
    with report.measuring("engine"):
        report.add(Row("engine", "create", 12, "ms"))
    report.render()
    saved = json.loads(report.save().read_text())
    printed = capsys.readouterr().out
    assert "12.00 ms" in printed
    assert "FAILED browser: RuntimeError: there is no browser" in printed
    assert [row["name"] for row in saved["rows"]] == ["create"]
    assert saved["failed"] == {"browser": "RuntimeError: there is no browser"}


class EchoHost(BaseHTTPRequestHandler):
    """Redirect once, then answer with the host that was asked for."""

    def do_GET(self) -> None:
        if self.path == "/first":
            self.send_response(302)
            self.send_header("Location", "/second")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        body = self.headers["Host"].encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Print nothing."""


@pytest.fixture
def port() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), EchoHost) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def test_a_file_of_the_dashboard_is_weighed_where_no_resolver_knows_its_host(port: int) -> None:
    host = f"sandkeeper.localhost:{port}"
    assert weigh(f"http://{host}/first") == len(host)
