"""The spawner: the process that owns sandbox processes and outlives the engine."""
