"""The routes about templates: the SDK's build flow, names, tags."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import re
import shutil
import time
from dataclasses import replace
from typing import Any

from sandkeeper.common.private_files import open_private
from sandkeeper.engine.control import schemas
from sandkeeper.engine.control.http import (
    BodyTooLargeError,
    ControlRequest,
    ControlResponse,
    authorizes_itself,
)
from sandkeeper.engine.control.listing import paginate
from sandkeeper.engine.control.rendering import render_build, render_template
from sandkeeper.engine.errors import BadRequestError, ConflictError, ResourceNotFoundError
from sandkeeper.engine.sandboxes.lifecycle import SandboxLifecycle
from sandkeeper.engine.sandboxes.records import BuildStatus
from sandkeeper.engine.storage.data_dir import DataDir
from sandkeeper.engine.templates.builder import Builder, Instruction, Recipe, image_to_template
from sandkeeper.engine.templates.catalogue import TemplateCatalog, check_tag, parse_name

_LOG_PAGE = 100
# A build uploads at once; a slow line may need minutes for the body, which is not counted.
UPLOAD_URL_TTL_S = 3600
_HASH = re.compile(r"[A-Za-z0-9_-]{1,128}")
_RECIPE_MAX = 8 << 20
UPLOAD_MAX = 1 << 30


class TemplateRoutes:
    """Build, look, name, delete."""

    def __init__(
        self,
        *,
        catalogue: TemplateCatalog,
        builder: Builder,
        lifecycle: SandboxLifecycle,
        data_dir: DataDir,
        key: str,
        public_url: str = "",
        domain: str = "",
    ) -> None:
        self._catalogue = catalogue
        self._builder = builder
        self._lifecycle = lifecycle
        self._data_dir = data_dir
        self._key = key
        self._public_url = public_url
        self._domain = domain

    # --- the build flow -------------------------------------------------------------------

    async def request_build(self, request: ControlRequest) -> ControlResponse:
        body = await request.parse(schemas.NewBuild)
        name = body.name or body.alias
        if not name:
            raise BadRequestError("field 'name': Field required")
        if shutil.disk_usage(self._data_dir.data).free < body.min_free_disk_mb << 20:
            raise BadRequestError("field 'minFreeDiskMb': this machine has not so much")
        build = await self._catalogue.request_build(
            name, body.tags or (), body.cpu_count, body.memory_mb
        )
        template = self._catalogue.get_template(build.template_id)
        return ControlResponse(
            202,
            {
                "templateID": template.id,
                "buildID": build.id,
                "public": template.public,
                "names": template.names,
                "tags": build.tags,
                "aliases": template.names,
            },
        )

    async def offer_upload(self, request: ControlRequest) -> ControlResponse:
        template = self._catalogue.get_template(request.params["id"])
        files_hash = _checked_hash(request.params["hash"])
        present = self._data_dir.upload(template.id, files_hash).exists()
        expires = int(time.time()) + UPLOAD_URL_TTL_S
        url = (
            f"{request.find_base_url(self._public_url, self._domain)}"
            f"/templates/{template.id}/files/{files_hash}"
            f"?expires={expires}&signature={self._sign(template.id, files_hash, expires)}"
        )
        return ControlResponse(201, {"present": present, "url": url})

    @authorizes_itself
    async def upload(self, request: ControlRequest) -> ControlResponse:
        """Store an archive. The URL is signed, because the SDK sends no key here."""
        template_id, files_hash = request.params["id"], _checked_hash(request.params["hash"])
        signature, expires = request.text("signature") or "", request.number("expires", 0, 0)
        expected = self._sign(template_id, files_hash, expires)
        if not hmac.compare_digest(signature.encode(), expected.encode()):
            return ControlResponse(403, {"code": 403, "message": "the upload URL is not ours"})
        if expires < time.time():
            return ControlResponse(403, {"code": 403, "message": "the upload URL has expired"})
        target = self._data_dir.upload(template_id, files_hash)
        aside = target.with_name(f".{target.name}.{os.urandom(4).hex()}")
        try:
            size = 0
            with open_private(aside, "wb") as file:
                async for chunk in request.stream():
                    size += len(chunk)
                    if size > UPLOAD_MAX:
                        raise BodyTooLargeError(f"an upload holds {UPLOAD_MAX} bytes at most")
                    file.write(chunk)
            aside.rename(target)
        finally:
            with contextlib.suppress(FileNotFoundError):
                aside.unlink()
        return ControlResponse(200, {})

    def _sign(self, template_id: str, files_hash: str, expires: int) -> str:
        text = f"upload:{template_id}:{files_hash}:{expires}".encode()
        return hmac.new(self._key.encode(), text, hashlib.sha256).hexdigest()

    async def start_build(self, request: ControlRequest) -> ControlResponse:
        build = self._catalogue.get_build(request.params["id"], request.params["build"])
        body = await request.parse(schemas.StartBuild, _RECIPE_MAX)
        if not body.from_template and not body.from_image:
            raise BadRequestError("one of 'fromImage' and 'fromTemplate' is needed")
        origin = body.from_template or image_to_template(body.from_image or "")
        steps = tuple(
            Instruction(kind=s.type.upper(), args=tuple(s.args), files_hash=s.files_hash)
            for s in body.steps
        )
        await self._builder.start(
            build,
            Recipe(
                from_template=origin,
                steps=steps,
                start_cmd=body.start_cmd,
                ready_cmd=body.ready_cmd,
                from_image=body.from_image if origin is None else None,
                registry=body.from_image_registry,
            ),
        )
        return ControlResponse(202, {})

    async def build_status(self, request: ControlRequest) -> ControlResponse:
        build = self._catalogue.get_build(request.params["id"], request.params["build"])
        offset = request.number("logsOffset", 0, 0)
        log = self._builder.log_of(build)
        entries = list(log[offset : offset + _LOG_PAGE])
        body: dict[str, Any] = {
            "templateID": build.template_id,
            "buildID": build.id,
            "status": build.status,
            "logs": [entry["message"] + "\n" for entry in entries],
            "logEntries": entries,
        }
        if build.status == BuildStatus.ERROR:
            body["reason"] = {"message": build.reason or "the build failed"}
            if build.failed_step:
                body["reason"]["step"] = build.failed_step
        return ControlResponse(200, body)

    async def build_logs(self, request: ControlRequest) -> ControlResponse:
        build = self._catalogue.get_build(request.params["id"], request.params["build"])
        limit = request.number("limit", _LOG_PAGE, 0, 1000)
        return ControlResponse(200, {"logs": list(self._builder.log_of(build))[:limit]})

    # --- look -----------------------------------------------------------------------------

    async def list_v1(self, _request: ControlRequest) -> ControlResponse:
        return ControlResponse(200, [self._render(t.id) for t in self._catalogue.list_templates()])

    async def list_v2(self, request: ControlRequest) -> ControlResponse:
        found = self._catalogue.list_templates()
        page, headers = paginate(found, request, lambda t: (t.created_at, t.id))
        return ControlResponse(200, [self._render(template.id) for template in page], headers)

    async def list_default(self, _request: ControlRequest) -> ControlResponse:
        return ControlResponse(200, [self._render("base")])

    async def get(self, request: ControlRequest) -> ControlResponse:
        template = self._catalogue.get_template(request.params["id"])
        builds = self._catalogue.list_builds(template.id)
        page, headers = paginate(builds, request, lambda b: (b.created_at, b.id))
        body = {**self._render(template.id), "builds": [render_build(build) for build in page]}
        return ControlResponse(200, body, headers)

    async def find_alias(self, request: ControlRequest) -> ControlResponse:
        template = self._catalogue.get_template(request.params["alias"])
        return ControlResponse(200, {"templateID": template.id, "public": template.public})

    def _render(self, template_id: str) -> dict[str, object]:
        template = self._catalogue.get_template(template_id)
        return render_template(template, self._catalogue.list_builds(template_id))

    # --- change ---------------------------------------------------------------------------

    async def patch(self, request: ControlRequest) -> ControlResponse:
        template = self._catalogue.get_template(request.params["id"])
        body = await request.parse(schemas.PatchTemplate)
        if body.public is not None:
            template = replace(template, public=body.public, updated_at=time.time())
            await self._catalogue.save_template(template)
        return ControlResponse(200, {"names": template.names})

    async def delete(self, request: ControlRequest) -> ControlResponse:
        template = self._catalogue.get_template(request.params["id"])
        if any(
            self._catalogue.get_build(template.id, build.id).status == BuildStatus.BUILDING
            for build in self._catalogue.list_builds(template.id)
        ):
            raise ConflictError("the template is being built")
        await self._catalogue.delete(template)
        for archive in self._data_dir.uploads.glob(f"{template.id}-*"):
            archive.unlink(missing_ok=True)
        await self._lifecycle.sweep_layers()
        return ControlResponse(204)

    # --- tags -----------------------------------------------------------------------------

    async def assign_tags(self, request: ControlRequest) -> ControlResponse:
        body = await request.parse(schemas.AssignTags)
        origin = self._catalogue.resolve(body.target)
        added = dict.fromkeys(map(check_tag, body.tags), origin.build.id)
        tags = {**origin.template.tags, **added}
        await self._catalogue.save_template(
            replace(origin.template, tags=tags, updated_at=time.time())
        )
        return ControlResponse(201, {"tags": body.tags, "buildID": origin.build.id})

    async def delete_tags(self, request: ControlRequest) -> ControlResponse:
        body = await request.parse(schemas.DeleteTags)
        template = self._catalogue.get_template(parse_name(body.name)[0])
        unknown = [tag for tag in body.tags if tag not in template.tags]
        if unknown:
            raise ResourceNotFoundError(f"template '{body.name}' has no tag '{unknown[0]}'")
        tags = {tag: build for tag, build in template.tags.items() if tag not in body.tags}
        await self._catalogue.save_template(replace(template, tags=tags, updated_at=time.time()))
        return ControlResponse(204)


def _checked_hash(text: str) -> str:
    if not _HASH.fullmatch(text):
        raise BadRequestError("the files' hash is invalid")
    return text
