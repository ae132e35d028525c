"""How encrypted values can fail to open."""

from __future__ import annotations

from sandkeeper.domain.errors import StoreError


class SecretDamagedError(StoreError):
    """An encrypted value was changed or moved to another row."""

    hint = "Restore the database from its backup."


class DataKeyMissingError(StoreError):
    """A value is encrypted with a data key that this process has not opened yet."""

    retryable = True
