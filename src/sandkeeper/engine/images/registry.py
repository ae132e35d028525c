"""A registry, by the protocol of the OCI's distribution specification.

Only reading: manifests and blobs, with the two ways to sign in (a password with every request, or
a token that another server gives for it). A blob that breaks off is continued where it ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx
import orjson

from sandkeeper.engine.images.credentials import RegistryCredentials
from sandkeeper.engine.images.errors import ImageError
from sandkeeper.engine.images.manifest import (
    CONFIG_MAX,
    INDEX_TYPES,
    MANIFEST_MAX,
    MANIFEST_TYPES,
    Descriptor,
    ImageManifest,
    choose_manifest,
    digest_of,
    is_index,
    parse_json,
    parse_manifest,
)
from sandkeeper.engine.images.reference import RegistryImage

_TIMEOUT = httpx.Timeout(60.0, connect=20.0)
_ATTEMPTS = 5
_PAUSE_S = 0.2
_DEPTH_MAX = 3
_TOKEN_MAX = 1 << 20
_PARAMETER = re.compile(r'(\w+)="([^"]*)"')
_ACCEPT = ", ".join((*INDEX_TYPES, *MANIFEST_TYPES))


class Registry:
    """One image's place in a registry, for the time of a pull."""

    def __init__(self, image: RegistryImage, credentials: RegistryCredentials | None) -> None:
        self._image = image
        self._credentials = credentials
        self._authorization: str | None = None
        self._scheme = "https"
        self._client = httpx.AsyncClient(timeout=_TIMEOUT, follow_redirects=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._client.aclose()

    async def resolve(self) -> tuple[ImageManifest, bytes]:
        """Return the manifest for this machine, and the configuration. Raises ImageError."""
        with self._explained():
            await self._choose_scheme()
            reference = self._image.reference
            for _ in range(_DEPTH_MAX):
                content = await self._read(f"manifests/{reference}", MANIFEST_MAX, _ACCEPT)
                if reference.startswith("sha256:") and digest_of(content) != reference:
                    raise ImageError(
                        f"the registry {self._image.host} gave another manifest than {reference}: "
                        "it is damaged or was tampered with"
                    )
                document = parse_json(content, f"manifest of {self._image.repository}")
                if not is_index(document):
                    manifest = parse_manifest(document)
                    return manifest, await self._read_config(manifest.config)
                reference = choose_manifest(document).digest
        raise ImageError("the image's index leads to others, and to no manifest")

    async def fetch(self, blob: Descriptor, target: Path, on_bytes: Callable[[int], None]) -> None:
        """Write a blob to a file, which may hold its first part already. Raises ImageError."""
        with self._explained():
            failures = 0
            while True:
                before = _find_size(target)
                try:
                    await self._append(blob, target, on_bytes)
                except httpx.TransportError:
                    # One that brought something does not count.
                    failures = failures + 1 if _find_size(target) <= before else 1
                    if failures == _ATTEMPTS:
                        raise
                    await asyncio.sleep(_PAUSE_S * 2**failures)
                else:
                    return

    async def _read_config(self, blob: Descriptor) -> bytes:
        content = await self._read(f"blobs/{blob.digest}", CONFIG_MAX)
        if digest_of(content) != blob.digest:
            raise ImageError(f"the image's configuration is damaged: it is not {blob.digest}")
        return content

    async def _append(
        self, blob: Descriptor, target: Path, on_bytes: Callable[[int], None]
    ) -> None:
        there = _find_size(target)
        if there >= blob.size and there:
            return
        headers = {"Range": f"bytes={there}-"} if there else {}
        async with self._ask(f"blobs/{blob.digest}", headers) as answer:
            is_rest = answer.status_code == httpx.codes.PARTIAL_CONTENT
            there = there if is_rest else 0
            with target.open("ab" if is_rest else "wb") as file:
                on_bytes(there)
                # As it is stored: the digest is of these bytes.
                async for piece in answer.aiter_raw():
                    there += len(piece)
                    if there > blob.size:
                        raise ImageError(
                            f"the registry gave more than the {blob.size} bytes of {blob.digest}"
                        )
                    file.write(piece)
                    on_bytes(there)
        if there < blob.size:
            raise httpx.ReadError(f"{blob.digest} ended after {there} of {blob.size} bytes")

    async def _read(self, path: str, most: int, accept: str = "*/*") -> bytes:
        content = b""
        async with self._ask(path, {"Accept": accept}) as answer:
            async for piece in answer.aiter_bytes():
                content += piece
                if len(content) > most:
                    raise ImageError(f"the registry's answer has more than {most} bytes")
        return content

    @contextlib.asynccontextmanager
    async def _ask(self, path: str, headers: dict[str, str]) -> AsyncIterator[httpx.Response]:
        """Send a request, sign in if the registry asks for it, and give the good answer."""
        url = f"{self._scheme}://{self._image.host}/v2/{self._image.repository}/{path}"
        for is_second in (False, True):
            own = {"Authorization": self._authorization} if self._authorization else {}
            own |= {"Accept-Encoding": "identity"}
            async with self._client.stream("GET", url, headers={**headers, **own}) as answer:
                if answer.status_code == httpx.codes.UNAUTHORIZED and not is_second:
                    challenge = answer.headers.get("WWW-Authenticate", "")
                elif answer.is_success:
                    yield answer
                    return
                else:
                    raise self._refuse(answer.status_code)
            await self._sign_in(challenge)

    async def _sign_in(self, challenge: str) -> None:
        kind = challenge.partition(" ")[0].lower()
        if "bearer " not in challenge.lower():
            if kind != "basic" or self._credentials is None:
                raise self._refuse(httpx.codes.UNAUTHORIZED)
            self._authorization = self._credentials.header
            return
        fields = dict(_PARAMETER.findall(challenge))
        realm = httpx.URL(fields.get("realm", ""))
        if realm.scheme != "https" and self._scheme == "https":
            raise ImageError(
                f"the registry {self._image.host} names no safe server for signing in: '{realm}'"
            )
        query = {"scope": fields.get("scope") or f"repository:{self._image.repository}:pull"}
        if "service" in fields:
            query["service"] = fields["service"]
        headers = {"Authorization": self._credentials.header} if self._credentials else {}
        answer = await self._client.get(realm.copy_merge_params(query), headers=headers)
        if not answer.is_success:
            raise self._refuse(answer.status_code)
        said = orjson.loads(answer.content[:_TOKEN_MAX])
        token = said.get("token") or said.get("access_token")
        if not isinstance(token, str) or not token.isprintable():
            raise ImageError(f"{realm.host} gave no token for the registry {self._image.host}")
        self._authorization = f"Bearer {token}"

    async def _choose_scheme(self) -> None:
        """Speak plain HTTP to a registry on this machine that knows nothing else."""
        if not self._image.is_on_this_machine:
            return
        try:
            await self._client.get(f"https://{self._image.host}/v2/")
        except httpx.ConnectError as error:
            if _is_of_tls(error):
                self._scheme = "http"

    def _refuse(self, status: int) -> ImageError:
        name = f"{self._image.repository}:{self._image.reference}"
        name = name.replace(":sha256:", "@sha256:")
        host = self._image.host
        if status in {httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN}:
            if self._credentials is not None:
                return ImageError(
                    f"the registry {host} refused '{name}' to '{self._credentials.username}': "
                    "check the user name, the password and its rights"
                )
            return ImageError(
                f"the registry {host} has no public image '{name}': check the name, or give a user "
                "name and a password if it is private"
            )
        if status == httpx.codes.NOT_FOUND:
            return ImageError(f"the registry {host} has no image '{name}': check name and tag")
        if status == httpx.codes.TOO_MANY_REQUESTS:
            return ImageError(
                f"the registry {host} allows no more pulls now: wait, or sign in with a user name "
                "and a password"
            )
        return ImageError(f"the registry {host} answered '{name}' with status {status}: try again")

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (httpx.HTTPError, httpx.InvalidURL, ssl.SSLError) as error:
            raise ImageError(
                f"the registry {self._image.host} cannot be reached: "
                f"{str(error) or type(error).__name__}; check its name and this machine's network"
            ) from error
        except (orjson.JSONDecodeError, AttributeError) as error:
            raise ImageError(f"the registry {self._image.host} gave an invalid answer") from error


def _is_of_tls(error: BaseException) -> bool:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def _find_size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def digest_file(path: Path) -> str:
    """Return the digest of a file's content."""
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
