"""The parts of the kept files, put together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from sandkeeper.providers.registry import ProviderRegistry
from sandkeeper.services.files.agent.client import CaptureLimits
from sandkeeper.services.files.blobs import open_blobs
from sandkeeper.services.files.file_api import FileApi
from sandkeeper.services.files.retention import FileRetention
from sandkeeper.services.files.versions import FileVersions
from sandkeeper.services.files.working_files import FileCapture
from sandkeeper.settings import Settings
from sandkeeper.store import Store


@dataclass(frozen=True, slots=True)
class FileServices:
    """What a keeper does with files."""

    working: FileCapture
    editing: FileApi
    retention: FileRetention


def make_file_services(
    settings: Settings, *, store: Store, regions: ProviderRegistry, clock: Callable[[], datetime]
) -> FileServices:
    """The services that the settings describe; nothing is opened or read yet."""
    blobs = open_blobs(settings.files_url, settings.data / "files")
    library = FileVersions(store=store, blobs=blobs, clock=clock)
    limits = CaptureLimits(
        file_bytes=settings.files_file_bytes_max,
        total_bytes=settings.files_total_bytes_max,
        entries=settings.files_count_max,
    )
    working = FileCapture(
        library=library,
        regions=regions,
        limits=limits,
        folder=settings.files_folder,
        hash_bytes_max=settings.files_hash_bytes_max,
    )
    return FileServices(
        working=working,
        editing=FileApi(library=library, working=working, store=store, limits=limits),
        retention=FileRetention(
            store=store,
            blobs=blobs,
            clock=clock,
            versions_kept=settings.files_versions_kept,
            abandoned_s=settings.retention_ended_s,
        ),
    )
