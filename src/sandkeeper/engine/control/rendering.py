"""Records as E2B's JSON."""

from __future__ import annotations

from typing import Any

from sandkeeper.engine.runtime.contract import ResourceLimits, Usage
from sandkeeper.engine.sandboxes.events import render_instant
from sandkeeper.engine.sandboxes.model import snapshot_id
from sandkeeper.engine.sandboxes.records import (
    BuildRecord,
    EngineState,
    SandboxRecord,
    TemplateRecord,
)

ENVD_VERSION = "0.6.13"
"""What our envd answers like; the SDKs open their newer calls by it."""
CLIENT_ID = "local"
DISK_MB = ResourceLimits().disk_mb


def render_sandbox(record: SandboxRecord, domain: str) -> dict[str, Any]:
    """Return the answer to create, connect, resume and fork."""
    body = {
        "templateID": record.template_id,
        "sandboxID": record.id,
        "clientID": CLIENT_ID,
        "envdVersion": ENVD_VERSION,
        "envdAccessToken": record.token,
        "trafficAccessToken": record.traffic_token,
        "domain": domain,
    }
    if record.alias:
        body["alias"] = record.alias
    return body


def render_listed(record: SandboxRecord) -> dict[str, Any]:
    """Return one line of a list."""
    body: dict[str, Any] = {
        "templateID": record.template_id,
        "sandboxID": record.id,
        "clientID": CLIENT_ID,
        "startedAt": render_instant(record.started_at),
        "endAt": render_instant(record.end_at),
        "cpuCount": record.cpu_count,
        "memoryMB": record.memory_mb,
        "diskSizeMB": DISK_MB,
        "state": record.state,
        "isolation": record.isolation,
        "envdVersion": ENVD_VERSION,
        "metadata": record.metadata,
    }
    if record.alias:
        body["alias"] = record.alias
    return body


def render_detail(
    record: SandboxRecord, domain: str, mounts: list[dict[str, str]]
) -> dict[str, Any]:
    """Return the details of one sandbox."""
    body = render_listed(record)
    body |= {
        "envdAccessToken": record.token,
        "allowInternetAccess": record.allow_internet,
        "domain": domain,
        "lifecycle": {
            "autoResume": record.auto_resume,
            "onTimeout": "pause" if record.auto_pause else "kill",
        },
    }
    if mounts:
        body["volumeMounts"] = mounts
    network: dict[str, Any] = {}
    if record.allow_out:
        network["allowOut"] = record.allow_out
    if record.deny_out:
        network["denyOut"] = record.deny_out
    if record.rules:
        network["rules"] = {
            host: [{"transform": {"headers": headers}}] for host, headers in record.rules.items()
        }
    if record.traffic_token is not None:
        network["allowPublicTraffic"] = False
    if record.mask_host is not None:
        network["maskRequestHost"] = record.mask_host
    if network:
        body["network"] = network
    if record.state == EngineState.PAUSED and record.pause_mode is not None:
        body["pauseMode"] = record.pause_mode
    return body


def render_metric(at: float, usage: Usage) -> dict[str, Any]:
    return {
        "timestamp": render_instant(at),
        "timestampUnix": int(at),
        "cpuCount": usage.cpu_count,
        "cpuUsedPct": usage.cpu_used_pct,
        "memUsed": usage.mem_used,
        "memTotal": usage.mem_total,
        "memCache": usage.mem_cache,
        "diskUsed": usage.disk_used,
        "diskTotal": usage.disk_total,
    }


def render_snapshot(template: TemplateRecord) -> dict[str, Any]:
    named = snapshot_id(template)
    return {"snapshotID": named, "names": [named] if template.names else []}


def render_template(template: TemplateRecord, builds: list[BuildRecord]) -> dict[str, Any]:
    """Return a template with the values of its newest build."""
    newest = builds[0] if builds else None
    return {
        "templateID": template.id,
        "buildID": newest.id if newest else "",
        "cpuCount": newest.cpu_count if newest else 2,
        "memoryMB": newest.memory_mb if newest else 1024,
        "diskSizeMB": DISK_MB,
        "public": template.public,
        "aliases": template.names,
        "names": template.names,
        "createdAt": render_instant(template.created_at),
        "updatedAt": render_instant(template.updated_at),
        "createdBy": None,
        "lastSpawnedAt": None
        if template.last_spawned_at is None
        else render_instant(template.last_spawned_at),
        "spawnCount": template.spawn_count,
        "buildCount": len(builds),
        "envdVersion": ENVD_VERSION,
        "buildStatus": newest.status if newest else "waiting",
    }


def render_build(build: BuildRecord) -> dict[str, Any]:
    """Return one build of a template's list of builds."""
    body = {
        "buildID": build.id,
        "status": build.status,
        "createdAt": render_instant(build.created_at),
        "updatedAt": render_instant(build.updated_at),
        "cpuCount": build.cpu_count,
        "memoryMB": build.memory_mb,
        "diskSizeMB": DISK_MB,
        "envdVersion": ENVD_VERSION,
    }
    if build.status in ("ready", "error"):
        body["finishedAt"] = render_instant(build.updated_at)
    return body
