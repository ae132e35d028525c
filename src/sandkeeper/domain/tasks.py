"""The names of the background tasks, used in metric labels, the CLI and the alert rules."""

from __future__ import annotations

from enum import StrEnum


class TaskName(StrEnum):
    """One background task each. The values are public: alerts and dashboards select by them."""

    ACTIVITY_HISTORY = "activity-history"
    APP_WATCH = "app-watch"
    CAPACITY = "capacity"
    CAPTURE = "capture"
    CATCH_UP = "catch-up"
    CHECKPOINT = "checkpoint"
    CLOCK = "clock"
    COSTS = "costs"
    DOMAINS = "domains"
    ENCRYPTION = "encryption"
    FLUSH = "flush"
    IDLE_SWEEP = "idle-sweep"
    PREVIEW_REQUESTS = "preview-requests"
    POOL = "pool"
    PROVIDER_CHECK = "provider-check"
    PROVIDER_NEWS = "provider-news"
    PRUNE = "prune"
    PRUNE_FILES = "prune-files"
    RECONCILE = "reconcile"
    RECOVERY = "recovery"
    SESSION_CLEANUP = "session-cleanup"
    SWITCHES = "switches"
    TOKENS = "tokens"
    TRENDS = "trends"
    WAKE_DRIVER = "wake-driver"
    WARM_UPS = "warm-ups"
