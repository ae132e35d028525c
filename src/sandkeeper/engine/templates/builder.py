"""Builds a template: its steps run in a real sandbox, whose disk then becomes a layer.

Steps are not cached: each build runs all of them, so the result always matches the steps.
"""

from __future__ import annotations

import asyncio
import logging
import posixpath
import tarfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from sandkeeper.engine.envd.files.rooted_fs import RootedFilesystem
from sandkeeper.engine.errors import BadRequestError, ConflictError, EngineError
from sandkeeper.engine.images.credentials import RegistryForm, find_credentials
from sandkeeper.engine.images.reference import parse_reference
from sandkeeper.engine.images.store import ImageStore, UnpackedImage
from sandkeeper.engine.interpreter.layer import PackagesLayer
from sandkeeper.engine.runtime.contract import (
    BootPlan,
    Command,
    ResourceLimits,
    Runtime,
    RuntimeFaultError,
)
from sandkeeper.engine.sandboxes.commands import run_to_end, shell, start_service, wait_until_ready
from sandkeeper.engine.sandboxes.events import render_instant
from sandkeeper.engine.sandboxes.isolation import IsolationPolicy
from sandkeeper.engine.sandboxes.records import Blueprint, BuildRecord, BuildStatus
from sandkeeper.engine.storage.data_dir import DataDir, new_id
from sandkeeper.engine.templates.catalogue import TemplateCatalog
from sandkeeper.engine.templates.copying import NothingToCopyError, copy_archive

_log = logging.getLogger("sandkeeper.engine")

_STEP_S = 3600.0
_READY_S = 300.0
_BUILDS_AT_ONCE = 2  # More would starve the sandboxes of the machine; the others wait.
_LOG_MAX = 10_000
_BASE_IMAGES = ("e2bdev/base", "docker.io/e2bdev/base", "e2b/base", "docker.io/e2b/base", "base")


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One step, as the SDK sends it."""

    kind: str
    args: tuple[str, ...]
    files_hash: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Everything a build is made from."""

    from_template: str | None
    steps: tuple[Instruction, ...]
    start_cmd: str | None
    ready_cmd: str | None
    from_image: str | None = None
    """Instead of a template."""
    registry: RegistryForm | None = None


class StepFailedError(Exception):
    """A step could not be carried out; `step` is its number, `base` or `finalize`."""

    def __init__(self, step: str, message: str) -> None:
        super().__init__(message)
        self.step = step
        self.message = message


@dataclass(slots=True)
class _BuildContext:
    """A build in progress: its sandbox, its log, and what the steps have set so far."""

    build: BuildRecord
    sandbox_id: str
    blueprint: Blueprint
    log: list[dict[str, Any]] = field(default_factory=list)
    rest: bytes = b""
    step: str = "base"

    def log_line(self, message: str, level: str = "info") -> None:
        if len(self.log) >= _LOG_MAX:
            return
        if len(self.log) == _LOG_MAX - 1:
            message = f"the log ends here: it holds {_LOG_MAX} lines at most"
        self.log.append(
            {
                "timestamp": render_instant(time.time()),
                "message": message,
                "level": level,
                "step": self.step,
            }
        )

    def on_output(self, data: bytes) -> None:
        """Log output, which arrives in pieces, line by line."""
        *lines, self.rest = (self.rest + data).split(b"\n")
        if len(self.rest) > 16384:
            lines.append(self.rest)
            self.rest = b""
        for line in lines:
            self.log_line(line.decode(errors="replace"))


def image_to_template(image: str) -> str | None:
    """Return the template that an image name stands for; None if it has to be pulled."""
    name = image.partition("@")[0]
    head, _, last = name.rpartition("/")
    plain = f"{head}/{last.partition(':')[0]}" if head else last.partition(":")[0]
    return "base" if plain in _BASE_IMAGES else None


def make_image_blueprint(name: str, image: UnpackedImage) -> Blueprint:
    """Return what sandboxes of an image are started from."""
    return Blueprint(
        layers=(image.layer_id,),
        env=image.env,
        user=image.user,
        workdir=image.workdir,
        image=name,
    )


def _add_commands(origin: Blueprint, build: BuildRecord, recipe: Recipe) -> Blueprint:
    return replace(
        origin,
        start_cmd=recipe.start_cmd or origin.start_cmd,
        ready_cmd=recipe.ready_cmd if recipe.start_cmd else origin.ready_cmd,
        cpu_count=build.cpu_count,
        memory_mb=build.memory_mb,
    )


class Builder:
    """Runs the builds of one engine, a few at a time."""

    def __init__(
        self,
        runtime: Runtime,
        catalogue: TemplateCatalog,
        data_dir: DataDir,
        isolation: IsolationPolicy,
        packages: PackagesLayer,
        images: ImageStore,
    ) -> None:
        self._images = images
        self._packages = packages
        self._isolation = isolation
        self._runtime = runtime
        self._catalogue = catalogue
        self._data_dir = data_dir
        self._turn = asyncio.Semaphore(_BUILDS_AT_ONCE)
        self._sites: dict[str, _BuildContext] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, build: BuildRecord, recipe: Recipe) -> None:
        """Start a waiting build. Errors in the recipe itself are raised here."""
        if build.status != BuildStatus.WAITING or build.id in self._sites:
            raise ConflictError(f"build '{build.id}' was started already")
        for step in recipe.steps:
            self._check(build, step)
        blueprint = Blueprint()
        if recipe.from_template is not None:
            blueprint = self._catalogue.resolve(recipe.from_template).blueprint
        else:
            parse_reference(recipe.from_image or "")
        blueprint = _add_commands(blueprint, build, recipe)
        build = replace(build, status=BuildStatus.BUILDING, updated_at=time.time())
        site = _BuildContext(build=build, sandbox_id=new_id("b"), blueprint=blueprint)
        self._sites[build.id] = site
        await self._catalogue.save_build(build)
        task = asyncio.create_task(self._build(site, recipe))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def log_of(self, build: BuildRecord) -> Sequence[dict[str, Any]]:
        site = self._sites.get(build.id)
        return build.log if site is None else site.log

    async def close(self) -> None:
        """Cancel the builds in progress."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _check(self, build: BuildRecord, step: Instruction) -> None:
        least = {"RUN": 1, "COPY": 2, "ENV": 2, "WORKDIR": 1, "USER": 1}.get(step.kind)
        if least is None:
            raise BadRequestError(f"step type '{step.kind}' is not supported by this engine")
        if len(step.args) < least or (step.kind == "ENV" and len(step.args) % 2):
            raise BadRequestError(f"step {step.kind} has too few arguments")
        if step.kind == "COPY":
            archive = self._data_dir.upload(build.template_id, step.files_hash or "")
            if not archive.exists():
                raise BadRequestError(f"the files of COPY {step.args[0]} were not uploaded")

    async def _build(self, site: _BuildContext, recipe: Recipe) -> None:
        layer_id = new_id()
        try:
            async with self._turn:
                with self._data_dir.headroom(site.sandbox_id, layer_id):
                    try:
                        await self._construct(site, recipe, layer_id)
                        await self._finish(site, layer_id)
                    finally:
                        await self._clear(site.sandbox_id)
        except StepFailedError as failure:
            site.log_line(failure.message, "error")
            await self._fail(site, failure.step, failure.message)
        except (RuntimeFaultError, EngineError, OSError) as fault:
            await self._fail(site, site.step, str(fault))
        except asyncio.CancelledError:
            raise
        except Exception as fault:  # noqa: BLE001 - a build must never stay unfinished
            _log.exception("a build failed unexpectedly")
            await self._fail(site, site.step, f"the engine failed: {fault!r}")
        finally:
            self._sites.pop(site.build.id, None)

    async def _construct(self, site: _BuildContext, recipe: Recipe, layer_id: str) -> None:
        """Boot, run the steps, try the start command, and turn the disk into a layer."""
        sandbox_id = site.sandbox_id
        site.log_line(f"FROM {recipe.from_image or recipe.from_template}")
        if recipe.from_image is not None:
            await self._pull(site, recipe, recipe.from_image)
        await self._boot(site)
        for number, step in enumerate(recipe.steps, 1):
            site.step = str(number)
            site.log_line(
                f"[{number}/{len(recipe.steps)}] {step.kind} {' '.join(step.args)}".rstrip()
            )
            await self._perform(site, step)
        site.step = "finalize"
        blueprint = site.blueprint
        if blueprint.start_cmd:
            # What the start command writes belongs to the template, as on E2B, where a template
            # is an image of the started machine.
            await self._try_start(site)
        await self._runtime.halt(sandbox_id)
        upper = self._data_dir.upper(sandbox_id)
        await asyncio.to_thread(upper.rename, self._data_dir.layer(layer_id))

    async def _pull(self, site: _BuildContext, recipe: Recipe, name: str) -> None:
        """Start from an image: fetch it, and take over its settings."""
        credentials = await find_credentials(recipe.registry)
        image = await self._images.pull(name, credentials, site.log_line)
        for note in image.notes:
            site.log_line(note, "warn")
        site.blueprint = _add_commands(make_image_blueprint(name, image), site.build, recipe)

    async def _boot(self, site: _BuildContext) -> None:
        blueprint = site.blueprint
        await self._runtime.boot(
            BootPlan(
                sandbox_id=site.sandbox_id,
                layers=self._packages.add_to(
                    tuple(self._data_dir.layer(layer) for layer in blueprint.layers),
                    blueprint.services,
                ),
                upper=self._data_dir.upper(site.sandbox_id),
                work=self._data_dir.work(site.sandbox_id),
                limits=ResourceLimits(cpu_count=blueprint.cpu_count, memory_mb=blueprint.memory_mb),
                isolation=self._isolation.choose(
                    self._catalogue.get_template(site.build.template_id), blueprint
                ),
                is_whole=blueprint.image is not None,
            )
        )

    async def _finish(self, site: _BuildContext, layer_id: str) -> None:
        site.log_line("the template is ready")
        blueprint = replace(site.blueprint, layers=(layer_id, *site.blueprint.layers))
        await self._catalogue.finish_build(
            replace(
                site.build,
                status=BuildStatus.READY,
                updated_at=time.time(),
                blueprint=asdict(blueprint),
                log=tuple(site.log),
            )
        )

    async def _fail(self, site: _BuildContext, step: str, message: str) -> None:
        await self._catalogue.save_build(
            replace(
                site.build,
                status=BuildStatus.ERROR,
                updated_at=time.time(),
                reason=message,
                failed_step=step,
                log=tuple(site.log),
            )
        )

    async def _clear(self, sandbox_id: str) -> None:
        await self._runtime.halt(sandbox_id)
        disk = self._data_dir.disk(sandbox_id)
        if disk.exists():
            await self._runtime.discard(disk)

    async def _perform(self, site: _BuildContext, step: Instruction) -> None:
        blueprint, args = site.blueprint, step.args
        if step.kind == "ENV":
            pairs = dict(zip(args[::2], args[1::2], strict=True))
            site.blueprint = replace(blueprint, env={**blueprint.env, **pairs})
        elif step.kind == "USER":
            self._tree(site, args[0])
            site.blueprint = replace(blueprint, user=args[0].partition(":")[0])
        elif step.kind == "WORKDIR":
            folder = posixpath.normpath(posixpath.join(blueprint.workdir, args[0]))
            await asyncio.to_thread(self._tree(site, blueprint.user).make_folders, folder)
            site.blueprint = replace(blueprint, workdir=folder)
        elif step.kind == "RUN":
            user = args[1] if len(args) > 1 and args[1] else blueprint.user
            command = shell(args[0], env=blueprint.env, user=user, cwd=blueprint.workdir)
            await self._run(site, command)
        else:
            await self._copy(site, step)

    async def _copy(self, site: _BuildContext, step: Instruction) -> None:
        """Copy the uploaded files into the sandbox."""
        source, target, user, mode = (*step.args, "", "")[:4]
        archive = self._data_dir.upload(site.build.template_id, step.files_hash or "")
        into = posixpath.join(site.blueprint.workdir, target)
        tree = self._tree(site, user or site.blueprint.user)
        try:
            await asyncio.to_thread(
                copy_archive, tree, archive, source, into, int(mode, 8) if mode else None
            )
        except (NothingToCopyError, OSError, ValueError, tarfile.TarError) as fault:
            raise StepFailedError(site.step, str(fault)) from fault

    def _tree(self, site: _BuildContext, user: str) -> RootedFilesystem:
        """Return the build sandbox's files, to be owned by the user."""
        owner = self._runtime.ids(site.sandbox_id).get(user.partition(":")[0])
        if owner is None:
            raise StepFailedError(
                site.step,
                f"there is no user '{user}' here; make one by its name before, which needs an "
                "engine that runs as root",
            )
        return RootedFilesystem(self._runtime.root(site.sandbox_id), owner)

    async def _run(self, site: _BuildContext, command: Command) -> None:
        try:
            code = await run_to_end(
                self._runtime,
                site.sandbox_id,
                command,
                on_output=site.on_output,
                within_s=_STEP_S,
            )
        except FileNotFoundError as fault:
            raise StepFailedError(site.step, fault.strerror or str(fault)) from fault
        except TimeoutError:
            raise StepFailedError(site.step, f"the step took longer than {_STEP_S:.0f} s") from None
        site.on_output(b"\n" if site.rest else b"")
        if code != 0:
            raise StepFailedError(site.step, f"the command ended with exit code {code}")

    async def _try_start(self, site: _BuildContext) -> None:
        """Start the start command once and wait until it is ready: a broken one fails here."""
        blueprint = site.blueprint
        assert blueprint.start_cmd is not None
        site.log_line(f"starting: {blueprint.start_cmd}")
        env, user, cwd = blueprint.env, blueprint.user, blueprint.workdir
        await start_service(
            self._runtime, site.sandbox_id, blueprint.start_cmd, env=env, user=user, cwd=cwd
        )
        if blueprint.ready_cmd and not await wait_until_ready(
            self._runtime,
            site.sandbox_id,
            blueprint.ready_cmd,
            env=env,
            user=user,
            cwd=cwd,
            within_s=_READY_S,
            on_output=site.on_output,
        ):
            raise StepFailedError("finalize", f"the ready command failed for {_READY_S:.0f} s")
