"""RegistryCredentials of registries, in the forms in which the SDK sends them.

They are kept in memory for as long as the build takes, and are written nowhere.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import hmac
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import httpx
import orjson
from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from sandkeeper.engine.images.errors import ImageError

_TIMEOUT_S = 30.0
_HUB_NAMES = ("https://index.docker.io/v1/", "docker.io")


class _RegistryForm(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, extra="forbid", frozen=True)


class PasswordForm(_RegistryForm):
    """A user of any registry."""

    type: Literal["registry"]
    username: str
    password: str = Field(repr=False)


class AwsForm(_RegistryForm):
    """A user of AWS, for its Elastic Container Registry."""

    type: Literal["aws"]
    aws_access_key_id: str
    aws_secret_access_key: str = Field(repr=False)
    aws_region: str = Field(pattern=r"^[a-z0-9-]{1,40}$")


class GcpForm(_RegistryForm):
    """A service account of Google Cloud, for its registries."""

    type: Literal["gcp"]
    service_account_json: str = Field(repr=False)


RegistryForm = Annotated[PasswordForm | AwsForm | GcpForm, Field(discriminator="type")]


@dataclass(frozen=True, slots=True)
class RegistryCredentials:
    """A user name and a password."""

    username: str
    password: str = field(repr=False)

    @property
    def header(self) -> str:
        pair = f"{self.username}:{self.password}".encode()
        return f"Basic {base64.b64encode(pair).decode()}"


async def find_credentials(
    form: PasswordForm | AwsForm | GcpForm | None,
) -> RegistryCredentials | None:
    """Return what to sign in with. Raises ImageError."""
    if form is None:
        return None
    if isinstance(form, PasswordForm):
        return RegistryCredentials(form.username, form.password)
    if isinstance(form, GcpForm):
        return RegistryCredentials("_json_key", form.service_account_json)
    return await _ask_aws(form)


def read_docker_credentials(host: str) -> RegistryCredentials | None:
    """Return what `docker login` stored for a registry in its file; None if there is nothing.

    For the operator's own choice of images only: a client of the API has to send its own.
    """
    folder = Path(os.environ.get("DOCKER_CONFIG") or "~/.docker").expanduser()
    names = (host, f"https://{host}", *(_HUB_NAMES if host.endswith("docker.io") else ()))
    try:
        stored = orjson.loads((folder / "config.json").read_bytes())["auths"]
        found = next(stored[name]["auth"] for name in names if name in stored)
        username, _, password = base64.b64decode(found).decode().partition(":")
    except (OSError, KeyError, TypeError, ValueError, StopIteration):
        return None
    return RegistryCredentials(username, password)


async def _ask_aws(form: AwsForm) -> RegistryCredentials:
    """Ask AWS for a password of its registry, which is valid for some hours."""
    # The variable that AWS's own tools read, for a network with an endpoint of its own.
    url = (
        os.environ.get("AWS_ENDPOINT_URL_ECR") or f"https://api.ecr.{form.aws_region}.amazonaws.com"
    )
    request = httpx.Request(
        "POST",
        f"{url.rstrip('/')}/",
        content=b"{}",
        headers={
            "Content-Type": "application/x-amz-json-1.1",
            "X-Amz-Target": "AmazonEC2ContainerRegistry_V20150921.GetAuthorizationToken",
        },
    )
    now = datetime.datetime.now(datetime.UTC)
    request.headers["Authorization"] = sign_for_aws(request, form, "ecr", now)
    try:
        async with httpx.AsyncClient(timeout=_TIMEOUT_S) as client:
            answer = await client.send(request)
        if answer.status_code != httpx.codes.OK:
            raise ImageError(f"AWS refused the access key: {_explain(answer)}")
        token = orjson.loads(answer.content)["authorizationData"][0]["authorizationToken"]
        username, _, password = base64.b64decode(token).decode().partition(":")
    except httpx.HTTPError as error:
        raise ImageError(
            f"AWS cannot be reached: {str(error) or type(error).__name__}; check this machine's "
            "network and the region"
        ) from error
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ImageError("AWS gave an answer without a password of its registry") from error
    return RegistryCredentials(username, password)


def _explain(answer: httpx.Response) -> str:
    try:
        said = orjson.loads(answer.content)
        return str(said.get("message") or said.get("__type") or answer.status_code)[:300]
    except (ValueError, AttributeError):
        return f"status {answer.status_code}"


def sign_for_aws(
    request: httpx.Request, form: AwsForm, service: str, now: datetime.datetime
) -> str:
    """Return the header `Authorization` of AWS's signature, version 4; add the date's header."""
    instant = now.strftime("%Y%m%dT%H%M%SZ")
    request.headers["X-Amz-Date"] = instant
    signed = {
        name.lower(): " ".join(value.split())
        for name, value in request.headers.items()
        if name.lower() in {"content-type", "host"} or name.lower().startswith("x-amz-")
    }
    names = ";".join(sorted(signed))
    canonical = "\n".join(
        (
            request.method,
            request.url.raw_path.partition(b"?")[0].decode(),
            "&".join(sorted(request.url.query.decode().split("&"))),
            *(f"{name}:{signed[name]}" for name in sorted(signed)),
            "",
            names,
            hashlib.sha256(request.content).hexdigest(),
        )
    )
    scope = f"{instant[:8]}/{form.aws_region}/{service}/aws4_request"
    text = "\n".join(
        ("AWS4-HMAC-SHA256", instant, scope, hashlib.sha256(canonical.encode()).hexdigest())
    )
    key = f"AWS4{form.aws_secret_access_key}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    return (
        f"AWS4-HMAC-SHA256 Credential={form.aws_access_key_id}/{scope}, "
        f"SignedHeaders={names}, Signature={signature}"
    )
