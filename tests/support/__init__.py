"""Helpers of the tests: real processes, servers and databases, named after what they are."""
