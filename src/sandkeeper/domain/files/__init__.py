"""Pure rules about working files: manifests and ignore rules."""
