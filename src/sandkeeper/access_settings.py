"""The settings of keys, sign-in, and what one caller may use; a part of `Settings`."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, Field, SecretStr
from pydantic_settings import NoDecode


def _split_at_commas(value: object) -> object:
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return value


CommaSeparated = Annotated[list[str], NoDecode, BeforeValidator(_split_at_commas)]
CommaSeparatedSecrets = Annotated[list[SecretStr], NoDecode, BeforeValidator(_split_at_commas)]


class AccessSettings(BaseModel):
    """Who may come in, with what, for how long, and how often."""

    operator_key: SecretStr | None = Field(
        default=None,
        description="Key of the operator; empty means the one in `operator.key` of the data "
        "folder, created at first start.",
    )
    other_operator_keys: CommaSeparatedSecrets = Field(
        default_factory=list,
        description="Comma-separated keys that are accepted as the operator's, too, with what they "
        "signed, while `operator_key` is rotated.",
    )
    viewer_keys: CommaSeparatedSecrets = Field(
        default_factory=list, description="Comma-separated keys with read-only access."
    )
    client_token_ttl_s: int = Field(
        default=3600, ge=1, description="Default lifetime of a client token, in seconds."
    )
    client_token_ttl_max_s: int = Field(
        default=86400, ge=1, description="Maximum lifetime of a client token, in seconds."
    )
    key_requests_per_s: int = Field(
        default=5000,
        ge=1,
        description="Maximum number of requests per second of one key or login, in one process.",
    )
    client_requests_per_s: int = Field(
        default=50,
        ge=1,
        description="Maximum number of requests per second of one client token, in one process.",
    )
    client_streams_max: int = Field(
        default=20,
        ge=1,
        description="Maximum number of live streams of one client token, in one process.",
    )
    failed_logins_max: int = Field(
        default=20,
        ge=1,
        description="Attempts with a wrong key that one address may make at once, then one per s.",
    )
    login_ttl_s: int = Field(
        default=7 * 86400, ge=60, description="Lifetime of a dashboard login, in seconds."
    )
