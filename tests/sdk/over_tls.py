"""A short life through the names of an engine with TLS; run as a program.

`over_tls.py` with what `sandkeeper engine env --tls` prints and no URL variable.
"""

from __future__ import annotations

import time
import urllib.request

import e2b
from e2b import Sandbox


def fetch(url: str) -> bytes:
    for _ in range(200):
        try:
            with urllib.request.urlopen(url) as answer:
                return answer.read()
        except OSError:
            time.sleep(0.05)
    raise AssertionError(f"{url} does not answer")


box = Sandbox.create(timeout=120)
assert box.commands.run("echo hi").stdout == "hi\n"
box.files.write("a.txt", "x" * 100_000)
assert box.files.read("a.txt") == "x" * 100_000
box.commands.run("python3 -m http.server 3000", background=True)
assert fetch(f"https://{box.get_host(3000)}/a.txt") == b"x" * 100_000
assert fetch(box.download_url("a.txt")) == b"x" * 100_000
assert box.sandbox_id in [one.sandbox_id for one in Sandbox.list().next_items()]
template = e2b.Template().from_base_image().copy("over_tls.py", "/home/user/copied.py")
e2b.Template.build(template, "over-tls")
built = Sandbox.create("over-tls")
assert built.files.exists("copied.py")
built.kill()
box.kill()
print("held: tls")
