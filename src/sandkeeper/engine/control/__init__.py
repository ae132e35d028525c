"""E2B's control plane: the REST routes over the lifecycle, the templates and the events."""
