"""How a sandbox is really made on this machine: namespaces, disk layers, limits, processes."""
