"""The names under which clients find the engine: its domain, its certificates, its ports."""
