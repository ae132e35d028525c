"""The settings of everything that is stored: database, kept files, and their encryption."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, Field, SecretStr

from sandkeeper.common.user_folders import user_data_folder


class StorageSettings(BaseModel):
    """Where data is stored, how much of it, and with which key."""

    data: Path = Field(
        default_factory=user_data_folder,
        description="Folder for keys, the embedded database, kept files and the engine's data.",
    )
    database: str = Field(
        default="",
        description="Database URL, `sqlite:///path` or `postgresql://…`; empty means an SQLite "
        "file in the data folder.",
    )
    database_connections: int = Field(
        default=16,
        ge=2,
        le=1000,
        description="Connections that each replica keeps open to the database, and one more to "
        "listen for changes.",
    )
    encryption_key: SecretStr | None = Field(
        default=None,
        description="Master key of the encryption at rest, 32 bytes in base64; several, separated "
        "by commas, during a rotation. Empty means `encryption_key_file`.",
    )
    encryption_key_file: Path | None = Field(
        default=None,
        description="File with the master key, one in each line during a rotation. Empty means "
        "`encryption.key` in the data folder, created at first start.",
    )
    encryption_kms_command: str = Field(
        default="",
        description="Command that wraps and unwraps data keys with a key management service, "
        "instead of a master key.",
    )
    files_url: str = Field(
        default="",
        description="Where to store the contents of kept files, `s3://bucket/prefix` or "
        "`file:///path`; empty means the folder `files` in the data folder. A "
        "bucket's key, region and endpoint come from its own variables, such as "
        "`AWS_ACCESS_KEY_ID` and `AWS_ENDPOINT_URL`.",
    )
    keep_files: bool = Field(
        default=True,
        description="Whether to capture working files before a pause and at intervals.",
    )
    keep_secret_files: bool = Field(
        default=False,
        description="Whether to keep files that usually hold secrets, such as `.env`, `.ssh` and "
        "`*.pem`; a sandbox's policy may say otherwise (`keepSecretFiles`).",
    )
    files_folder: str = Field(
        default="/home/user",
        pattern="^/",
        description="Work folder of a sandbox that names none; kept files are below it.",
    )
    files_checkpoint_s: float = Field(
        default=300,
        gt=0,
        description="Seconds between two captures of a running sandbox whose files change.",
    )
    capture_min_interval_s: float = Field(
        default=10,
        ge=1,
        description="Minimum seconds between two captures of a sandbox that is in use; it is "
        "captured more rarely while nothing changes.",
    )
    files_versions_kept: int = Field(
        default=100, ge=1, description="Versions to keep of a sandbox's files."
    )
    files_file_bytes_max: int = Field(
        default=2 * 1024**3 - 1,
        ge=1,
        description="Maximum size of one kept file in bytes; a larger file is named and left out.",
    )
    files_total_bytes_max: int = Field(
        default=20 * 1024**3,
        ge=1,
        description="Maximum size of all kept files of a sandbox, in bytes.",
    )
    files_count_max: int = Field(
        default=200_000,
        ge=1,
        description="Maximum number of files, links and folders to keep of a sandbox.",
    )
    files_hash_bytes_max: int = Field(
        default=256 * 1024**2,
        ge=0,
        description="Bytes to compare by hash after a resume; the rest is compared by size and "
        "time.",
    )

    @property
    def has_configured_key(self) -> bool:
        """Return whether the master key comes from elsewhere than the data folder."""
        is_given = self.encryption_key is not None or self.encryption_key_file is not None
        return is_given or bool(self.encryption_kms_command)

    @property
    def database_url(self) -> str:
        """Return the database's URL, or the default."""
        return self.database or f"sqlite:///{self.data / 'sandkeeper.db'}"
