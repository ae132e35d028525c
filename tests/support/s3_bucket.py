"""A bucket that speaks as much S3 as a client of objects needs, for tests of the S3 path."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import uuid
from collections.abc import Iterator

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

XML = '<?xml version="1.0" encoding="UTF-8"?>'


class Bucket:
    """Objects in memory, by key; it looks at no signature. While it `is_down`, it refuses all."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.url = ""
        self.is_down = False

    @property
    def variables(self) -> dict[str, str]:
        """The variables by which a client finds it."""
        return {
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.url,
        }

    async def answer(self, request: Request) -> Response:
        key = request.path_params["key"]
        query = request.query_params
        body = await request.body()
        if self.is_down:
            return Response(status_code=503)
        if request.method == "POST" and "uploads" in query:
            upload = uuid.uuid4().hex
            self.uploads[upload] = {}
            inner = f"<Bucket>b</Bucket><Key>{key}</Key><UploadId>{upload}</UploadId>"
            kind = "InitiateMultipartUploadResult"
            return Response(f"{XML}<{kind}>{inner}</{kind}>", media_type="application/xml")
        if request.method == "POST":
            parts = self.uploads.pop(query["uploadId"])
            self.objects[key] = b"".join(parts[number] for number in sorted(parts))
            kind = "CompleteMultipartUploadResult"
            inner = f'<Key>{key}</Key><ETag>"whole"</ETag>'
            return Response(f"{XML}<{kind}>{inner}</{kind}>", media_type="application/xml")
        if request.method == "PUT" and "uploadId" in query:
            self.uploads[query["uploadId"]][int(query["partNumber"])] = body
            return Response(headers={"ETag": f'"{len(body)}"'})
        if request.method == "PUT":
            self.objects[key] = body
            return Response(headers={"ETag": '"one"'})
        if request.method == "DELETE":
            self.uploads.pop(query.get("uploadId", ""), None)
            self.objects.pop(key, None)
            return Response(status_code=204)
        return self._get(request, key)

    async def delete_many(self, request: Request) -> Response:
        keys = re.findall(r"<Key>(.*?)</Key>", (await request.body()).decode())
        for key in keys:
            self.objects.pop(key, None)
        deleted = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
        body = f"{XML}<DeleteResult>{deleted}</DeleteResult>"
        return Response(body, media_type="application/xml")

    def _get(self, request: Request, key: str) -> Response:
        if key not in self.objects:
            body = f"{XML}<Error><Code>NoSuchKey</Code></Error>"
            return Response(body, 404, media_type="application/xml")
        data = self.objects[key]
        headers = {"ETag": '"one"', "Last-Modified": "Fri, 02 Jan 2026 00:00:00 GMT"}
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("range", ""))
        if asked is None:
            return Response(data, headers=headers)
        start, end = int(asked[1]), min(int(asked[2] or len(data) - 1), len(data) - 1)
        headers["Content-Range"] = f"bytes {start}-{end}/{len(data)}"
        return Response(data[start : end + 1], 206, headers=headers)


@contextlib.contextmanager
def serving() -> Iterator[Bucket]:
    """A bucket on a port of its own, for the length of a block."""
    bucket = Bucket()
    methods = ["GET", "HEAD", "PUT", "POST", "DELETE"]
    app = Starlette(
        routes=[
            Route("/{name}", bucket.delete_many, methods=["POST"]),
            Route("/{name}/{key:path}", bucket.answer, methods=methods),
        ]
    )
    listener = socket.create_server(("127.0.0.1", 0))
    bucket.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    config = uvicorn.Config(app, log_level="error", lifespan="off", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield bucket
    finally:
        server.should_exit = True
        thread.join(30)
        listener.close()
