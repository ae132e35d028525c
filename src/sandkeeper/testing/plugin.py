"""The pytest plugin: fixtures that hand a test a real engine, a keeper and a sandbox."""
