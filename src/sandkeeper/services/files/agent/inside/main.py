"""The end of the script: it carries out one request, and answers on one line."""

# ruff: noqa: PTH108, PTH123
# Loading pathlib would take longer than most of the work here.

from __future__ import annotations

import base64
import json
import os
import signal
import sys
import zlib

from sandkeeper.services.files.agent.inside.collect import capture
from sandkeeper.services.files.agent.inside.common import MARK, Fence, RefusedByFenceError
from sandkeeper.services.files.agent.inside.place import put_back
from sandkeeper.services.files.agent.inside.walk import list_tree

VERBS = {"list": list_tree, "capture": capture, "put_back": put_back}
# How often a script at work gives a sign of life. A blank is neither a line nor an answer.
SIGN_S = 10


def main() -> None:
    """Answer the request that is the first argument, or in the file that follows an `@` there."""
    signal.signal(signal.SIGALRM, lambda *_: os.write(1, b" "))
    signal.setitimer(signal.ITIMER_REAL, SIGN_S, SIGN_S)
    text = sys.argv[1]
    if text.startswith("@"):
        with open(text[1:]) as file:
            os.unlink(text[1:])
            text = file.read()
    request = json.loads(zlib.decompress(base64.b64decode(text)))
    try:
        with Fence(request):
            pass
        if request.get("fence"):
            request["fence"][2] = False
        found = VERBS[request["verb"]](request)
    except RefusedByFenceError:
        found = {"refused": True}
    signal.setitimer(signal.ITIMER_REAL, 0)
    answer = json.dumps(found).encode()
    sys.stdout.write("\n" + MARK + base64.b64encode(zlib.compress(answer, 1)).decode() + "\n")


if __name__ == "__main__":
    main()
