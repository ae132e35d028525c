"""What an E2B-compatible provider offers, and what Sandkeeper does where it does not.

E2B's cloud offers all of it. Self-hosted fleets and other servers that speak E2B's API may lack
parts. `sandkeeper doctor --provider` finds out which, and the keeper remembers the answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class ProviderFeature(StrEnum):
    """The parts that the check tries, in this order."""

    CREATE = "create"
    """Create a sandbox from a template."""
    METADATA = "metadata"
    """Give back the metadata of a creation: a sandbox is found again by it after a crash."""
    LIST = "list"
    """List sandboxes by their metadata."""
    COMMANDS = "commands"
    """Run a command inside."""
    FILES = "files"
    """Write and read a file."""
    PORTS = "ports"
    """Reach an app by the address of its port."""
    METRICS = "metrics"
    """Report the processor use of sandboxes."""
    TIMEOUT = "timeout"
    """Change how long a sandbox lives."""
    PAUSE = "pause"
    """Pause a sandbox, so that it costs no processor."""
    RESUME = "resume"
    """Resume it with its files."""
    MEMORY = "memory"
    """Keep the processes of a paused sandbox."""
    REBOOT = "reboot"
    """Start a paused sandbox from its disk alone."""
    EVENTS = "events"
    """List what happened to sandboxes."""
    WEBHOOKS = "webhooks"
    """Register a webhook for what happens."""
    KILL = "kill"
    """End a sandbox for good."""


NEEDED: Final = frozenset(
    {
        ProviderFeature.CREATE,
        ProviderFeature.METADATA,
        ProviderFeature.LIST,
        ProviderFeature.COMMANDS,
        ProviderFeature.FILES,
        ProviderFeature.KILL,
    }
)
"""Without one of these a provider cannot be used."""

INSTEAD: Final[Mapping[ProviderFeature, str]] = {
    ProviderFeature.PORTS: "previews do not work; everything else does",
    ProviderFeature.METRICS: "a busy processor does not keep a sandbox awake; commands still do",
    ProviderFeature.TIMEOUT: "a sandbox ends when the provider ends it; a wake brings it back",
    ProviderFeature.PAUSE: "an idle sandbox is ended after its files are saved; a wake creates it "
    "again with them",
    ProviderFeature.RESUME: "a wake creates the sandbox again, with its saved files",
    ProviderFeature.MEMORY: "a wake starts the app again",
    ProviderFeature.REBOOT: "a resume that fails for its memory ends in a new sandbox with the "
    "saved files",
    ProviderFeature.EVENTS: "changes are found by webhooks, and by comparing the provider's list",
    ProviderFeature.WEBHOOKS: "changes are found by the events, and by comparing the list",
}
"""What Sandkeeper does where a feature is missing."""
