"""Adds headers to the requests that sandboxes send to some hosts (`network.rules`), with secrets.

A sandbox's program opens a connection to the host as always. It ends at the engine, which has a
certificate for the host that the sandbox trusts; the engine sends the request on, under its own
connection, with the headers of the rule. So the sandbox never sees a secret.
"""
