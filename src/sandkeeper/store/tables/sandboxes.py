"""The schema, as the current code sees it. ``migrations`` brings every older database here."""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    false,
    text,
)

from sandkeeper.store.types import UtcMillis

METADATA: Final = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)

SEQUENCE = BigInteger().with_variant(Integer, "sqlite")

IS_ENDED: Final = "state IN ('EXPIRED', 'KILLED', 'TERMINATED')"
"""The condition of an index, which planners recognize only with the values written out."""


def _where(name: str, *columns: str, where: str) -> Index:
    """Return an index of the rows for which a condition is true."""
    return Index(name, *columns, sqlite_where=text(where), postgresql_where=text(where))


SANDBOXES: Final = Table(
    "sandboxes",
    METADATA,
    Column("id", String, primary_key=True),
    Column("owner_kind", String, nullable=False),
    Column("owner_id", String, nullable=False),
    Column("provider", String, nullable=False),
    Column("region", String),
    Column("state", String, nullable=False),
    Column("state_since", UtcMillis, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("launch", Text, nullable=False),
    Column("env", Text),
    Column("policy", Text, nullable=False),
    Column("instance_id", String),
    Column("run_id", String),
    Column("run_started_at", UtcMillis),
    Column("url", Text),
    Column("ready", Boolean, nullable=False),
    Column("reason", Text, nullable=False),
    Column("actor", String, nullable=False),
    Column("created_at", UtcMillis, nullable=False),
    Column("updated_at", UtcMillis, nullable=False),
    Column("expires_at", UtcMillis),
    Column("end_at", UtcMillis),
    Column("end_as_of", UtcMillis),
    Column("last_active_at", UtcMillis),
    Column("last_active_class", String),
    Column("last_active_source", String),
    Column("passive_count", BigInteger, nullable=False),
    Column("passive_at", UtcMillis),
    Column("passive_source", String),
    Column("observed_at", UtcMillis),
    Column("state_as_of", UtcMillis),
    Column("state_received_at", UtcMillis),
    Column("acted_at", UtcMillis),
    Column("last_event_at", UtcMillis),
    Column("last_event_seen", String),
    Column("last_event_id", String),
    Column("last_webhook_at", UtcMillis),
    Column("paused_by_scheduler_at", UtcMillis),
    Column("recreated", Boolean, nullable=False),
    Column("recreation_reason", Text),
    Column("claim_kind", String),
    Column("claim_holder", String),
    Column("claim_until", UtcMillis),
    Column("next_check_at", UtcMillis),
    Column("last_verified_at", UtcMillis),
    Column("verification_failures", Integer, nullable=False, server_default="0"),
    Column("unreachable_at", UtcMillis),
    Column("killed_at", UtcMillis),
    Column("killed_reason", String),
    Column("wake", Text),
    Column("work", Text),
    Column("leased_until", UtcMillis),
    Column("gaps", Text, nullable=False, server_default=""),
    Column("idle_pauses", Integer, nullable=False, server_default="0"),
    Column("early_pauses", Integer, nullable=False, server_default="0"),
    Column("idle_tail_ms", BigInteger, nullable=False, server_default="0"),
    Column("warmed_at", UtcMillis),
    Column("app_down_at", UtcMillis),
    Column("app_exit_code", Integer),
    Column("isolation", String),
    Column("tenant", String, nullable=False, server_default="default"),
    Column("vcpus", Integer),
    Column("memory_mb", Integer),
    Column("preview_name", String),
    UniqueConstraint("owner_kind", "owner_id", name="uq_sandboxes_owner"),
    UniqueConstraint("instance_id", name="uq_sandboxes_instance_id"),
    _where("ix_sandboxes_due", "next_check_at", "id", where="next_check_at IS NOT NULL"),
    _where("ix_sandboxes_unchecked", "id", where="next_check_at IS NULL"),
    _where("ix_sandboxes_claim_holder", "claim_holder", where="claim_holder IS NOT NULL"),
    _where("ix_sandboxes_ended", "state_since", where=IS_ENDED),
    Index("ix_sandboxes_state", "state", "created_at", "id"),
    Index("ix_sandboxes_created_at", "created_at", "id"),
    Index("ix_sandboxes_updated_at", "updated_at", "id"),
    Index("ix_sandboxes_tenant", "tenant", "created_at", "id"),
    _where("ix_sandboxes_preview_name", "preview_name", where="preview_name IS NOT NULL"),
)

EVENTS: Final = Table(
    "events",
    METADATA,
    Column("seq", SEQUENCE, primary_key=True, autoincrement=True),
    Column("sandbox_id", String, nullable=False),
    Column("owner_kind", String, nullable=False),
    Column("owner_id", String, nullable=False),
    Column("type", String, nullable=False),
    Column("at", UtcMillis, nullable=False),
    Column("recorded_at", UtcMillis, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("actor", String, nullable=False),
    Column("reason", Text, nullable=False),
    Column("data", Text, nullable=False),
    Index("ix_events_sandbox_id", "sandbox_id", "seq"),
    sqlite_autoincrement=True,
)

SANDBOX_CHANGES: Final = Table(
    "sandbox_changes",
    METADATA,
    Column("sandbox_id", String, primary_key=True),
    Column("position", BigInteger, nullable=False),
    # Copies, to sort and count by: in their own table an index would make every write dearer.
    Column("last_active_at", UtcMillis),
    Column("seen_at", UtcMillis),
    Column("removed", Boolean, nullable=False, server_default=false()),
    Index("ix_sandbox_changes_position", "position"),
    _where(
        "ix_sandbox_changes_active",
        "last_active_at",
        "sandbox_id",
        where="last_active_at IS NOT NULL",
    ),
    _where(
        "ix_sandbox_changes_inactive",
        "sandbox_id",
        where="last_active_at IS NULL AND NOT removed",
    ),
    _where("ix_sandbox_changes_seen_at", "seen_at", where="seen_at IS NOT NULL"),
    _where("ix_sandbox_changes_removed", "position", where="removed"),
)

SANDBOX_COUNTS: Final = Table(
    "sandbox_counts",
    METADATA,
    Column("number", SEQUENCE, primary_key=True, autoincrement=True),
    Column("provider", String, nullable=False),
    Column("region", String),
    Column("state", String, nullable=False),
    Column("change", BigInteger, nullable=False),
)

SANDBOX_SEARCH: Final = Table(
    "sandbox_search",
    METADATA,
    Column("number", SEQUENCE, primary_key=True, autoincrement=True),
    Column("sandbox_id", String, nullable=False),
    Column("text", Text, nullable=False),
    UniqueConstraint("sandbox_id", name="uq_sandbox_search_sandbox_id"),
)

DELIVERIES: Final = Table(
    "deliveries",
    METADATA,
    Column("number", SEQUENCE, primary_key=True, autoincrement=True),
    Column("delivery_id", String),
    Column("event_id", String),
    Column("type", String),
    Column("instance_id", String),
    Column("event_at", UtcMillis),
    Column("received_at", UtcMillis, nullable=False),
    Column("outcome", String, nullable=False),
    Column("detail", Text, nullable=False),
    Index("ix_deliveries_received_at", "received_at"),
    sqlite_autoincrement=True,
)

SEEN_EVENTS: Final = Table(
    "seen_events",
    METADATA,
    Column("event_id", String, primary_key=True),
    Column("seen_at", UtcMillis, nullable=False),
    Index("ix_seen_events_seen_at", "seen_at"),
)

ANSWERS: Final = Table(
    "answers",
    METADATA,
    Column("scope", String, primary_key=True),
    Column("key", String, primary_key=True),
    Column("fingerprint", String, nullable=False),
    Column("status", Integer),
    Column("body", Text),
    Column("started_at", UtcMillis, nullable=False),
    Column("held_until", UtcMillis, nullable=False),
    Column("holder", String),
    Index("ix_answers_started_at", "started_at"),
)

FACTS: Final = Table(
    "facts",
    METADATA,
    Column("name", String, primary_key=True),
    Column("value", Text, nullable=False),
    Column("updated_at", UtcMillis, nullable=False),
)

REPLICAS: Final = Table(
    "replicas",
    METADATA,
    Column("id", String, primary_key=True),
    Column("beats", BigInteger, nullable=False),
    Column("started_at", UtcMillis, nullable=False),
    Column("beat_at", UtcMillis, nullable=False),
    Column("database_ahead_ms", BigInteger, nullable=False, server_default="0"),
)

REGION_LEASES: Final = Table(
    "region_leases",
    METADATA,
    Column("region", String, primary_key=True),
    Column("term", BigInteger, nullable=False),
    Column("holder", String),
    Column("started_at", UtcMillis, nullable=False),
    Column("finished_at", UtcMillis),
)

LEAKS: Final = Table(
    "leaks",
    METADATA,
    Column("instance_id", String, primary_key=True),
    Column("provider", String, nullable=False),
    Column("region", String),
    Column("kind", String, nullable=False),
    Column("owner", String),
    Column("metadata", Text, nullable=False),
    Column("first_seen_at", UtcMillis, nullable=False),
    Column("last_seen_at", UtcMillis, nullable=False),
    Column("sightings", Integer, nullable=False),
    Column("removed_at", UtcMillis),
    Column("removed_by", String),
    Column("reason", Text, nullable=False, server_default=""),
    Column("paused_at", UtcMillis),
    Index("ix_leaks_last_seen_at", "last_seen_at"),
)

SAMPLES: Final = Table(
    "samples",
    METADATA,
    Column("number", SEQUENCE, primary_key=True, autoincrement=True),
    Column("kind", String, nullable=False),
    Column("at", UtcMillis, nullable=False),
    Column("data", Text, nullable=False),
    Index("ix_samples_kind", "kind", "at"),
    sqlite_autoincrement=True,
)

WAKES: Final = Table(
    "wakes",
    METADATA,
    Column("id", String, primary_key=True),
    Column("sandbox_id", String, nullable=False),
    Column("actor", String, nullable=False),
    Column("status", String, nullable=False),
    Column("method", String),
    Column("attempt", Integer, nullable=False),
    Column("may_recreate", Boolean, nullable=False),
    Column("wanted_until", UtcMillis),
    Column("starts_over", Boolean, nullable=False, server_default=false()),
    Column("priority", String),
    Column("overflow", String),
    Column("steps", Text, nullable=False),
    Column("receipt", Text),
    Column("error_code", String),
    Column("error", Text),
    Column("started_at", UtcMillis, nullable=False),
    Column("updated_at", UtcMillis, nullable=False),
    Column("due_at", UtcMillis, nullable=False),
    Column("driver", String),
    Column("finished_at", UtcMillis),
    Index("ix_wakes_sandbox_id", "sandbox_id", "started_at"),
    Index("ix_wakes_finished_at", "finished_at"),
    # One wake of a sandbox at a time: a second caller finds the first one's wake.
    Index(
        "uq_wakes_under_way",
        "sandbox_id",
        unique=True,
        sqlite_where=text("finished_at IS NULL"),
        postgresql_where=text("finished_at IS NULL"),
    ),
    Index(
        "ix_wakes_due_at",
        "due_at",
        sqlite_where=text("finished_at IS NULL"),
        postgresql_where=text("finished_at IS NULL"),
    ),
)

JOBS: Final = Table(
    "jobs",
    METADATA,
    Column("id", String, primary_key=True),
    Column("status", String, nullable=False),
    Column("stage_label", Text, nullable=False),
    Column("build_version", String),
    Column("debug_id", String),
    Column("error_message", Text),
    Column("pause_note", Text),
    Column("created_at", UtcMillis, nullable=False),
    Column("updated_at", UtcMillis, nullable=False),
    Index("ix_jobs_created_at", "created_at", "id"),
)

REBUILDS: Final = Table(
    "rebuilds",
    METADATA,
    Column("id", String, primary_key=True),
    Column("job_id", String, nullable=False),
    Column("actor", String, nullable=False),
    Column("status", String, nullable=False),
    Column("wake_id", String),
    Column("error_code", String),
    Column("error", Text),
    Column("created_at", UtcMillis, nullable=False),
    Column("updated_at", UtcMillis, nullable=False),
    Column("due_at", UtcMillis, nullable=False),
    Column("driver", String),
    Index("ix_rebuilds_job_id", "job_id", "created_at"),
    Index(
        "uq_rebuilds_under_way",
        "job_id",
        unique=True,
        sqlite_where=text("status IN ('confirmed', 'charged')"),
        postgresql_where=text("status IN ('confirmed', 'charged')"),
    ),
)

WARMUPS: Final = Table(
    "warmups",
    METADATA,
    Column("id", String, primary_key=True),
    Column("sandbox_id", String, nullable=False),
    Column("actor", String, nullable=False),
    Column("started_at", UtcMillis, nullable=False),
    Column("outcome", String),
    Column("settled_at", UtcMillis),
    Index("ix_warmups_started_at", "started_at"),
    Index("ix_warmups_sandbox_id", "sandbox_id", "started_at"),
    # One warm-up of a sandbox at a time.
    Index(
        "uq_warmups_open",
        "sandbox_id",
        unique=True,
        sqlite_where=text("settled_at IS NULL"),
        postgresql_where=text("settled_at IS NULL"),
    ),
)
