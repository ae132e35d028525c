"""The database: one schema for SQLite (embedded) and PostgreSQL (shared by several replicas).

``open_store(url)`` returns a ``Store`` with one attribute per noun: ``sandboxes``, ``events``,
``deliveries``, ``answers``, ``facts``, ``files``, ``checkpoints``, ``jobs``, ``leaks``,
``leases``, ``pools``, ``samples``, ``sessions``, ``tokens`` and ``wakes``. Every change of a
sandbox is written in one transaction with its events.
"""

from __future__ import annotations

from sandkeeper.store.deliveries import Delivery
from sandkeeper.store.events import LoggedEvent
from sandkeeper.store.file_checkpoints import FileCheckpoint
from sandkeeper.store.files import BlobLocation, FileVersion
from sandkeeper.store.sandboxes.query import Page, SandboxQuery, Sort
from sandkeeper.store.store import Pruned, Store, open_store

__all__ = [
    "BlobLocation",
    "Delivery",
    "FileCheckpoint",
    "FileVersion",
    "LoggedEvent",
    "Page",
    "Pruned",
    "SandboxQuery",
    "Sort",
    "Store",
    "open_store",
]
