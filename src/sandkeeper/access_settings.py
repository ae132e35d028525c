"""The settings of keys, sign-in, and what one caller may use; a part of `Settings`."""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, SecretStr
from pydantic_settings import NoDecode

from sandkeeper.common.dashboard_host import is_protected


def _split_at_commas(value: object) -> object:
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return value


def _check_network(value: str) -> str:
    try:
        ipaddress.ip_network(value)
    except ValueError:
        raise ValueError(
            f"{value!r} is neither an address (10.0.0.5) nor a network (10.0.0.0/8)."
        ) from None
    return value


CommaSeparated = Annotated[list[str], NoDecode, BeforeValidator(_split_at_commas)]
CommaSeparatedNetworks = Annotated[
    list[Annotated[str, AfterValidator(_check_network)]],
    NoDecode,
    BeforeValidator(_split_at_commas),
]
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
    trusted_proxies: CommaSeparatedNetworks = Field(
        default_factory=list,
        description="Comma-separated addresses and networks of proxies that are believed when they "
        "say, by `X-Forwarded-For` and `X-Forwarded-Proto`, for whom they ask; by default none.",
    )
    login_ttl_s: int = Field(
        default=7 * 86400, ge=60, description="Lifetime of a dashboard login, in seconds."
    )

    oidc_issuer: str = Field(
        default="",
        description="Issuer URL of the OpenID Connect provider with which people sign in to the "
        "dashboard; empty means that they sign in with keys only.",
    )
    oidc_name: str = Field(
        default="",
        max_length=60,
        description="Name of that provider on the sign-in page; empty means its host name.",
    )
    oidc_client_id: str = Field(
        default="", description="Client id under which the provider knows this keeper."
    )
    oidc_client_secret: SecretStr | None = Field(
        default=None, description="Client secret; empty means a public client, or the file."
    )
    oidc_client_secret_file: Path | None = Field(
        default=None, description="File that contains the client secret."
    )
    oidc_redirect_url: str = Field(
        default="",
        description="URL of the dashboard, to which the provider sends people back; empty means "
        "`public_url`. Register it at the provider with `/login/oidc/callback` added.",
    )
    oidc_scopes: str = Field(
        default="openid profile email",
        pattern=r"(^| )openid( |$)",
        description="Scopes to ask the provider for, with spaces between them.",
    )
    oidc_roles_claim: str = Field(
        default="groups",
        min_length=1,
        description="Claim of the ID token that lists a person's roles; dots lead into objects.",
    )
    oidc_roles: dict[str, Literal["read", "operate", "admin"]] = Field(
        default_factory=dict,
        description="Scopes by role, as JSON in the environment; the greatest of a person's roles "
        "counts, and without one of these a person cannot sign in.",
    )

    def check_sign_in(self, public_url: str) -> None:
        """Raise ValueError if people are to sign in and a setting for it is missing."""
        if not self.oidc_issuer:
            return
        needed = {
            "oidc_client_id": self.oidc_client_id,
            "oidc_roles": self.oidc_roles,
            "oidc_redirect_url": self.oidc_redirect_url or public_url,
        }
        missing = [name for name, value in needed.items() if not value]
        if missing:
            raise ValueError(f"oidc_issuer is set, so {' and '.join(missing)} must be set, too.")
        if not is_protected(self.oidc_issuer):
            raise ValueError("oidc_issuer must be an https URL, unless it is on this machine.")
        file = self.oidc_client_secret_file
        if file is not None and not os.access(file, os.R_OK):
            raise ValueError(f"oidc_client_secret_file {str(file)!r} cannot be read.")
