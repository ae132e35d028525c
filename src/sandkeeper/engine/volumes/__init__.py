"""Volumes: folders that outlive sandboxes and can be mounted in several of them at once."""
