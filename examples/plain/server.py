"""Serve the page and its tokens with Python's standard library only."""

import json
import os
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit
from urllib.request import Request, urlopen

KEEPER = os.environ.get("SANDKEEPER_URL", "http://127.0.0.1:7420")
KEY = os.environ["SANDKEEPER_OPERATOR_KEY"]
# Here you would ask whether the signed-in user may see the project.
PROJECTS = {"shop"}


class Page(SimpleHTTPRequestHandler):
    def __init__(self, *given: object) -> None:
        super().__init__(*given, directory=str(Path(__file__).parent))

    def do_GET(self) -> None:
        asked = urlsplit(self.path)
        if asked.path == "/settings":
            self.answer(json.dumps({"keeper": KEEPER}), "application/json")
        elif asked.path == "/sandkeeper-token":
            project = parse_qs(asked.query).get("project", [""])[0]
            if project not in PROJECTS:
                self.send_error(403)
            else:
                self.answer(issue_token(project), "text/plain")
        elif asked.path in {"/", "/index.html", "/page.js", "/page.css"}:
            super().do_GET()
        else:
            self.send_error(404)

    def answer(self, text: str, kind: str) -> None:
        body = text.encode()
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)


def issue_token(project: str) -> str:
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    body = json.dumps({"project": project}).encode()
    with urlopen(Request(f"{KEEPER}/api/client-tokens", body, headers)) as answer:
        return json.load(answer)["token"]


if __name__ == "__main__":
    port = int(os.environ.get("PORT", "8000"))
    ThreadingHTTPServer(("127.0.0.1", port), Page).serve_forever()
