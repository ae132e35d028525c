"""Every template, build and snapshot, by id, name and tag.

Everything is in memory and written through to the database. The engine's own templates always exist
and have no record: `base` is the base of the runtime, or an image that the operator chose;
`code-interpreter-v1` is the former with a service that starts on first use, and `desktop` with more
memory.
"""

from __future__ import annotations

import re
import sqlite3
import time
import uuid
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace

from sandkeeper.engine.errors import BadRequestError, ConflictError, ResourceNotFoundError
from sandkeeper.engine.sandboxes.records import Blueprint, BuildRecord, BuildStatus, TemplateRecord
from sandkeeper.engine.storage.data_dir import new_id
from sandkeeper.engine.storage.database import EngineDatabase

TEAM_SLUG = "local"
DEFAULT_TAG = "default"
BASE_ID = "base"


def _make_own(
    names: tuple[str, ...], services: tuple[str, ...] = (), memory_mb: int = 1024
) -> tuple[TemplateRecord, BuildRecord]:
    """Make a template of the engine's own. Its ids are the same on every machine."""
    build_id = str(uuid.uuid5(uuid.NAMESPACE_URL, f"sandkeeper:{names[0]}"))
    template = TemplateRecord(
        id=names[0],
        names=names,
        tags={DEFAULT_TAG: build_id},
        created_at=0,
        updated_at=0,
        public=True,
    )
    build = BuildRecord(
        id=build_id,
        template_id=names[0],
        status=BuildStatus.READY,
        created_at=0,
        updated_at=0,
        memory_mb=memory_mb,
        blueprint={"services": services, "memory_mb": memory_mb},
    )
    return template, build


_OWN = (
    _make_own((BASE_ID,)),
    _make_own(("code-interpreter-v1", "code-interpreter"), services=("interpreter",)),
    # A browser needs more memory than the others.
    _make_own(("desktop",), services=("desktop",), memory_mb=4096),
)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_OWN_NAMES = frozenset(name for template, _ in _OWN for name in template.names)


@dataclass(frozen=True, slots=True)
class TemplateSource:
    """What a sandbox is about to be started from."""

    template: TemplateRecord
    build: BuildRecord

    @property
    def blueprint(self) -> Blueprint:
        return self.build.to_blueprint()

    @property
    def alias(self) -> str | None:
        return self.template.names[0] if self.template.names else None


def parse_name(text: str) -> tuple[str, str]:
    """Split `[team/]name[:tag]` into name and tag."""
    name, colon, tag = text.partition(":")
    name = name.removeprefix(f"{TEAM_SLUG}/")
    if not _NAME.fullmatch(name):
        raise BadRequestError(
            f"{text[:80]!r} is not a template name: use letters, digits, '.', '_' and '-', "
            "and begin with a letter or digit"
        )
    return name, check_tag(tag if colon else DEFAULT_TAG)


def check_tag(tag: str) -> str:
    """Return the tag if it is one."""
    if not _NAME.fullmatch(tag):
        raise BadRequestError(
            f"{tag[:80]!r} is not a template's tag: use letters, digits, '.', '_' and '-', "
            "and begin with a letter or digit"
        )
    return tag


class TemplateCatalog:
    """The templates. Reads are from memory; every change is on disk when its call returns."""

    def __init__(self, database: EngineDatabase) -> None:
        self._database = database
        self._templates: dict[str, TemplateRecord] = {t.id: t for t, _ in _OWN}
        self._builds: dict[str, BuildRecord] = {b.id: b for _, b in _OWN}

    async def load(self) -> None:
        """Read everything. A build that was in progress when the engine ended has failed."""

        def read(connection: sqlite3.Connection) -> tuple[list[str], list[str]]:
            templates = connection.execute("SELECT record FROM templates").fetchall()
            builds = connection.execute("SELECT record FROM builds").fetchall()
            return [row[0] for row in templates], [row[0] for row in builds]

        templates, builds = await self._database.run(read)
        for text in templates:
            template = TemplateRecord.from_json(text)
            self._templates[template.id] = template
        for text in builds:
            build = BuildRecord.from_json(text)
            self._builds[build.id] = build
            if build.status not in (BuildStatus.READY, BuildStatus.ERROR):
                await self.save_build(
                    replace(
                        build,
                        status=BuildStatus.ERROR,
                        reason="the engine was restarted during the build",
                    )
                )

    def set_base(self, blueprint: Blueprint) -> None:
        """Start sandboxes of `base` from this instead of the runtime's base."""
        _template, build = _OWN[0]
        self._builds[build.id] = replace(build, blueprint=asdict(blueprint))

    def list_templates(self) -> list[TemplateRecord]:
        """Return the templates that are not snapshots, newest first."""
        found = [t for t in self._templates.values() if t.source_sandbox_id is None]
        return sorted(found, key=lambda t: (-t.created_at, t.id))

    def list_snapshots(self) -> list[TemplateRecord]:
        found = [t for t in self._templates.values() if t.source_sandbox_id is not None]
        return sorted(found, key=lambda t: (-t.created_at, t.id))

    def list_builds(self, template_id: str) -> list[BuildRecord]:
        found = [b for b in self._builds.values() if b.template_id == template_id]
        return sorted(found, key=lambda b: (-b.created_at, b.id))

    def find_template(self, text: str) -> TemplateRecord | None:
        """Find by id or by name; a tag is ignored."""
        try:
            name, _ = parse_name(text)
        except BadRequestError:
            return None
        if name in self._templates:
            return self._templates[name]
        return next((t for t in self._templates.values() if name in t.names), None)

    def get_template(self, text: str) -> TemplateRecord:
        template = self.find_template(text)
        if template is None:
            raise ResourceNotFoundError(f"template '{text}' not found")
        return template

    def get_build(self, template_id: str, build_id: str) -> BuildRecord:
        template = self.get_template(template_id)
        build = self._builds.get(build_id)
        if build is None or build.template_id != template.id:
            raise ResourceNotFoundError(f"build '{build_id}' of template '{template_id}' not found")
        return build

    def resolve(self, text: str) -> TemplateSource:
        """Find what a sandbox is to be started from."""
        template = self.get_template(text)
        _, tag = parse_name(text)
        build_id = template.tags.get(tag)
        if build_id is None:
            raise ResourceNotFoundError(
                f"template '{text}' not found: it has no tag '{tag}' that is built"
            )
        return TemplateSource(template, self._builds[build_id])

    def layers_in_use(self) -> set[str]:
        """Return every layer that some finished build consists of."""
        return {
            layer
            for build in self._builds.values()
            for layer in (build.blueprint or {}).get("layers", ())
        }

    async def request_build(
        self, name: str, tags: Iterable[str], cpu_count: int, memory_mb: int
    ) -> BuildRecord:
        """Make a build that waits for its steps, and its template where the name is new."""
        plain, tag = parse_name(name)
        if plain in _OWN_NAMES:
            raise ConflictError(f"'{plain}' is the engine's own template; choose another name")
        now = time.time()
        template = self.find_template(plain)
        if template is None:
            template = TemplateRecord(
                id=new_id(), names=(plain,), tags={}, created_at=now, updated_at=now
            )
            await self.save_template(template)
        build = BuildRecord(
            id=str(uuid.uuid4()),
            template_id=template.id,
            status=BuildStatus.WAITING,
            created_at=now,
            updated_at=now,
            cpu_count=cpu_count,
            memory_mb=memory_mb,
            tags=tuple(dict.fromkeys([tag, *map(check_tag, tags)])),
        )
        await self.save_build(build)
        return build

    async def finish_build(self, build: BuildRecord) -> None:
        """Save a ready build and point its tags to it."""
        template = self._templates[build.template_id]
        tags = {**template.tags, **dict.fromkeys(build.tags, build.id)}
        tags.setdefault(DEFAULT_TAG, build.id)
        await self.save_build(build)
        await self.save_template(replace(template, tags=tags, updated_at=time.time()))

    async def add_snapshot(
        self, blueprint_fields: dict[str, object], sandbox_id: str, name: str | None
    ) -> TemplateRecord:
        """Save a snapshot: a template of one ready build. A known name gets a new build."""
        now = time.time()
        plain, tag = parse_name(name) if name else (None, DEFAULT_TAG)
        template = self.find_template(plain) if plain else None
        if template is not None and template.source_sandbox_id is None:
            raise ConflictError(f"'{name}' is the name of a template that is not a snapshot")
        if template is None:
            template = TemplateRecord(
                id=new_id(),
                names=(plain,) if plain else (),
                tags={},
                created_at=now,
                updated_at=now,
                source_sandbox_id=sandbox_id,
            )
        build = BuildRecord(
            id=str(uuid.uuid4()),
            template_id=template.id,
            status=BuildStatus.READY,
            created_at=now,
            updated_at=now,
            blueprint=blueprint_fields,
        )
        tags = {DEFAULT_TAG: build.id, **template.tags, tag: build.id}
        template = replace(template, tags=tags, updated_at=now, source_sandbox_id=sandbox_id)
        await self.save_build(build)
        await self.save_template(template)
        return template

    def record_spawn(self, template: TemplateRecord) -> None:
        """Count a start, in memory only: the number is for show."""
        present = self._templates.get(template.id)
        if present is not None:
            self._templates[template.id] = replace(
                present, spawn_count=present.spawn_count + 1, last_spawned_at=time.time()
            )

    async def delete(self, template: TemplateRecord) -> None:
        """Delete a template and its builds; unused layers are swept later."""
        if template.id in _OWN_NAMES:
            raise BadRequestError(
                f"'{template.id}' is the engine's own template and cannot be deleted"
            )
        del self._templates[template.id]
        for build in self.list_builds(template.id):
            del self._builds[build.id]

        def remove(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM templates WHERE id = ?", (template.id,))
            connection.execute("DELETE FROM builds WHERE template_id = ?", (template.id,))

        await self._database.run(remove)

    async def save_template(self, template: TemplateRecord) -> None:
        if template.id in _OWN_NAMES:
            raise BadRequestError(
                f"'{template.id}' is the engine's own template and cannot be deleted as it is"
            )
        self._templates[template.id] = template
        await self._database.run(
            lambda c: c.execute(
                "INSERT INTO templates (id, record) VALUES (?, ?) "
                "ON CONFLICT (id) DO UPDATE SET record = excluded.record",
                (template.id, template.to_json()),
            )
        )

    async def save_build(self, build: BuildRecord) -> None:
        self._builds[build.id] = build
        await self._database.run(
            lambda c: c.execute(
                "INSERT INTO builds (id, template_id, record) VALUES (?, ?, ?) "
                "ON CONFLICT (id) DO UPDATE SET record = excluded.record",
                (build.id, build.template_id, build.to_json()),
            )
        )
