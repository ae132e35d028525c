"""The routes about a template's tags. A tag has one assignment: the build that it names now."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from sandkeeper.engine.control.http import ControlRequest, ControlResponse
from sandkeeper.engine.errors import BadRequestError, ResourceNotFoundError
from sandkeeper.engine.sandboxes.events import render_instant
from sandkeeper.engine.sandboxes.records import TemplateRecord
from sandkeeper.engine.templates.catalogue import TemplateCatalog, check_tag

_SORTS: dict[str, tuple[Callable[[dict[str, Any]], Any], bool]] = {
    "latest_desc": (lambda group: group["assignments"][0]["assignedAt"], True),
    "latest_asc": (lambda group: group["assignments"][0]["assignedAt"], False),
    "name_asc": (lambda group: group["tag"], False),
    "name_desc": (lambda group: group["tag"], True),
}


class TagRoutes:
    """Counts, looks up and lists the tags of a template."""

    def __init__(self, catalogue: TemplateCatalog) -> None:
        self._catalogue = catalogue

    async def list(self, request: ControlRequest) -> ControlResponse:
        template = self._get(request)
        tags = [
            {
                "tag": tag,
                "buildID": build_id,
                "createdAt": self._render(template, tag)["assignedAt"],
            }
            for tag, build_id in template.tags.items()
        ]
        return ControlResponse(200, tags)

    async def count(self, request: ControlRequest) -> ControlResponse:
        return ControlResponse(200, {"total": len(self._get(request).tags)})

    async def exists(self, request: ControlRequest) -> ControlResponse:
        template = self._get(request)
        tag = check_tag(request.text("tag") or "")
        return ControlResponse(200, {"exists": tag in template.tags, "normalizedTag": tag})

    async def groups(self, request: ControlRequest) -> ControlResponse:
        template = self._get(request)
        limit = request.number("tagsLimit", 25, 1, 100)
        request.number("assignmentLimit", 6, 1, 100)
        search, sort = request.text("search") or "", request.text("sort") or "latest_desc"
        if sort not in _SORTS:
            raise BadRequestError(f"'sort' must be one of {', '.join(_SORTS)}")
        groups = [
            {"tag": tag, "assignments": [self._render(template, tag)], "hasMore": False}
            for tag in template.tags
            if search in tag
        ]
        key, is_reversed = _SORTS[sort]
        groups.sort(key=key, reverse=is_reversed)
        first = request.number("tagsCursor", 0, 0)
        more = str(first + limit) if first + limit < len(groups) else None
        return ControlResponse(200, {"tags": groups[first : first + limit], "nextCursor": more})

    async def assignments(self, request: ControlRequest) -> ControlResponse:
        template, tag = self._get(request), request.params["tag"]
        if tag not in template.tags:
            raise ResourceNotFoundError(f"template '{template.id}' has no tag '{tag[:80]}'")
        found = [] if request.text("cursor") else [self._render(template, tag)]
        return ControlResponse(200, {"data": found, "nextCursor": None})

    def _get(self, request: ControlRequest) -> TemplateRecord:
        return self._catalogue.get_template(request.params["id"])

    def _render(self, template: TemplateRecord, tag: str) -> dict[str, Any]:
        build = self._catalogue.get_build(template.id, template.tags[tag])
        identity = f"{template.id}:{tag}:{build.id}"
        return {
            "assignmentId": str(uuid.uuid5(uuid.NAMESPACE_OID, identity)),
            "buildId": build.id,
            "assignedAt": render_instant(build.created_at),
            "buildCreatedAt": render_instant(build.created_at),
            "buildFinishedAt": render_instant(build.updated_at),
        }
