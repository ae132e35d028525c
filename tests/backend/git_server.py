"""Runs inside a sandbox: a git repository over HTTP that asks for a password, and watches.

Usage: git_server.py FOLDER PORT TOKEN REPORT. At every request it looks at all command lines, and
writes `leaked` to REPORT as soon as the token is in one of them.
"""

import base64
import functools
import http.server
import pathlib
import sys

FOLDER, PORT, TOKEN, REPORT = sys.argv[1:5]
EXPECTED = "Basic " + base64.b64encode(f"x-access-token:{TOKEN}".encode()).decode()


def look_for_the_token() -> None:
    for line in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = line.read_bytes()
        except OSError:
            continue
        if TOKEN.encode() in text and b"git_server.py" not in text:
            pathlib.Path(REPORT).write_text(f"leaked {text!r}")


class Asking(http.server.SimpleHTTPRequestHandler):
    def do_GET(self) -> None:
        look_for_the_token()
        if self.headers.get("Authorization") != EXPECTED:
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="git"')
            self.end_headers()
            return
        super().do_GET()


http.server.ThreadingHTTPServer(
    ("127.0.0.1", int(PORT)), functools.partial(Asking, directory=FOLDER)
).serve_forever()
