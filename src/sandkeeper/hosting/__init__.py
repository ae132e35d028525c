"""Run a keeper: the ASGI server, its data folder, discovery, and the local engine."""
