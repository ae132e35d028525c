"""The second wall: a sandbox's programs run on gVisor's kernel, inside bubblewrap's namespaces."""
