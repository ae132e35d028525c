"""The database, and the storage of files."""

from __future__ import annotations

from sandkeeper.domain.errors.base import SandkeeperError


class StoreError(SandkeeperError, abstract=True):
    """The store failed."""

    hint = "Run `sandkeeper doctor`."


class VersionConflictError(StoreError):
    """The record changed since it was read."""

    hint = "Read the record again and repeat the request."
    retryable = True


class StoreUnavailableError(StoreError):
    """The database cannot be reached."""

    retryable = True


class SchemaMismatchError(StoreError):
    """The database schema does not match this version."""

    hint = "Run `sandkeeper db upgrade`."


class SchemaTooNewError(StoreError):
    """A newer version of Sandkeeper has upgraded this database."""

    hint = "Run the newer version, or let it downgrade the schema with `sandkeeper db downgrade`."


class FilesUnavailableError(StoreError):
    """The storage of the saved files cannot be reached."""

    hint = "The last good version is intact; check `files_url` and try again."
    retryable = True


class FilesDamagedError(StoreError):
    """Saved content is missing or does not match its hash."""

    hint = "Restore the folder or bucket of the saved files from its backup."
