"""What the control plane accepts. A field that is not here is refused by name, never ignored."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    StrictStr,
)
from pydantic.alias_generators import to_camel

from sandkeeper.engine.egress_proxy.rules import check_rules
from sandkeeper.engine.errors import BadRequestError
from sandkeeper.engine.images.credentials import RegistryForm


def _whole(value: Any) -> Any:
    """Accept 60.0 as 60: some clients have only one kind of number."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Seconds = Annotated[StrictInt, BeforeValidator(_whole), Field(lt=1 << 31, gt=-(1 << 31))]
Texts = dict[StrictStr, StrictStr]
# E2B uses underscores for this field in requests and camelCase in responses.
Internet = Annotated[
    StrictBool | None,
    Field(validation_alias=AliasChoices("allow_internet_access", "allowInternetAccess")),
]


# The value of a Host header; `${PORT}` in it stands for the port that was asked for.
HostMask = Annotated[
    StrictStr,
    Field(max_length=255, pattern=r"^[A-Za-z0-9._\[\]:-]*(\$\{PORT\}[A-Za-z0-9._\[\]:-]*)?$"),
]


class Body(BaseModel):
    """A request's JSON object: camelCase, strict types, no other fields."""

    model_config = ConfigDict(
        alias_generator=lambda name: to_camel(name).replace("Id", "ID"),
        extra="forbid",
        populate_by_name=False,
    )


class AutoResume(Body):
    enabled: StrictBool = False


class Transform(Body):
    headers: Texts | None = None


class NetworkRule(Body):
    transform: Transform | None = None


class Network(Body):
    allow_out: list[StrictStr] | None = None
    deny_out: list[StrictStr] | None = None
    allow_public_traffic: StrictBool | None = None
    mask_request_host: HostMask | None = None
    dns_servers: Any = None
    https_ports: Any = None
    egress_proxy: Any = None
    rules: dict[StrictStr, list[NetworkRule]] | None = None

    def list_headers(self) -> dict[str, dict[str, str]]:
        """Return the headers of the rules by host. Raises BadRequestError."""
        found = {
            host: [one.transform.headers or {} for one in rules if one.transform]
            for host, rules in (self.rules or {}).items()
        }
        return check_rules(found)

    def refuse_unsupported(self) -> None:
        """Refuse what this engine would have to ignore."""
        for name in ("dnsServers", "httpsPorts", "egressProxy"):
            value = getattr(self, _FIELD_OF[name])
            if value not in (None, [], {}):
                raise BadRequestError(f"field 'network.{name}' is not supported by this engine")


_FIELD_OF = {
    "dnsServers": "dns_servers",
    "httpsPorts": "https_ports",
    "egressProxy": "egress_proxy",
}


class NetworkUpdate(Network):
    allow_internet_access: Internet = None


class VolumeMount(Body):
    name: StrictStr
    path: StrictStr


class NewSandbox(Body):
    template_id: StrictStr
    timeout: Seconds | None = None
    auto_pause: StrictBool | None = None
    auto_pause_memory: StrictBool | None = None
    auto_resume: AutoResume | None = None
    metadata: Texts | None = None
    env_vars: Texts | None = None
    allow_internet_access: Internet = None
    network: Network | None = None
    secure: StrictBool | None = None
    mcp: Any = None
    iam: Any = None
    volume_mounts: list[VolumeMount] | None = Field(default=None, max_length=16)

    def refuse_unsupported(self) -> None:
        """Refuse what this engine would have to ignore, and what contradicts itself."""
        if self.mcp not in (None, {}):
            raise BadRequestError(
                "field 'mcp' is not supported by this engine: E2B's gateway runs its servers as "
                "Docker containers; start your MCP server by a command and use its port"
            )
        if self.iam not in (None, {}):
            raise BadRequestError("field 'iam' is not supported by this engine")
        if self.network is not None:
            self.network.refuse_unsupported()
        if self.auto_pause_memory is False:
            if not self.auto_pause:
                raise BadRequestError("autoPauseMemory=false needs autoPause")
            if self.auto_resume is not None and self.auto_resume.enabled:
                raise BadRequestError("autoPauseMemory=false does not go with autoResume")


class PauseBody(Body):
    memory: StrictBool = True
    require_healthy_guest: StrictBool = False


class Connect(Body):
    timeout: Seconds | None = None
    memory: StrictBool = True


class ResumeBody(Connect):
    auto_pause: StrictBool | None = None


class Timeout(Body):
    timeout: Seconds


class Refresh(Body):
    duration: Seconds | None = None


class SnapshotBody(Body):
    name: StrictStr | None = None
    memory: StrictBool | None = None


class Fork(Body):
    timeout: Seconds | None = None
    count: StrictInt = Field(default=1, ge=1, le=20)


class NewSecret(Body):
    name: StrictStr
    value: StrictStr
    metadata: Texts | None = None


class SecretUpdate(Body):
    value: StrictStr
    metadata: Texts | None = None


class NewVolume(Body):
    name: StrictStr = Field(max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")


class NewEntryMetadata(Body):
    uid: StrictInt | None = Field(default=None, ge=0, le=65535)
    gid: StrictInt | None = Field(default=None, ge=0, le=65535)
    mode: StrictInt | None = Field(default=None, ge=0, le=0o7777)


class NewBuild(Body):
    name: StrictStr | None = None
    alias: StrictStr | None = None
    tags: list[StrictStr] | None = None
    cpu_count: StrictInt = Field(default=2, ge=1, le=64)
    memory_mb: StrictInt = Field(default=1024, ge=128, le=1 << 20, alias="memoryMB")
    min_free_disk_mb: StrictInt = Field(default=0, ge=0)


class BuildStep(Body):
    type: StrictStr
    args: list[StrictStr] = []
    force: StrictBool | None = None
    files_hash: StrictStr | None = None
    force_upload: StrictBool | None = None
    resolve_symlinks: StrictBool | None = None
    gzip: StrictBool | None = None


class StartBuild(Body):
    from_image: StrictStr | None = None
    from_template: StrictStr | None = None
    from_image_registry: RegistryForm | None = None
    force: StrictBool | None = None
    steps: list[BuildStep] = []
    start_cmd: StrictStr | None = None
    ready_cmd: StrictStr | None = None


class PatchTemplate(Body):
    public: StrictBool | None = None


class AssignTags(Body):
    target: StrictStr
    tags: list[StrictStr] = Field(min_length=1)


class DeleteTags(Body):
    name: StrictStr
    tags: list[StrictStr] = Field(min_length=1)


class NewWebhook(Body):
    name: StrictStr = Field(min_length=1)
    url: StrictStr
    events: list[StrictStr] = Field(min_length=1)
    signature_secret: StrictStr = Field(min_length=1)
    enabled: StrictBool = True


class PatchWebhook(Body):
    name: StrictStr | None = None
    url: StrictStr | None = None
    events: list[StrictStr] | None = None
    signature_secret: StrictStr | None = None
    enabled: StrictBool | None = None
