"""The local engine: E2B's own HTTP API on one Linux machine.

A separate program in the same package. It imports nothing of the rest, and the rest reaches it
only over HTTP, through the same client that reaches E2B's cloud.
"""
