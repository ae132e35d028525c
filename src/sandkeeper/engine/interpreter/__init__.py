"""The code interpreter: runs code inside a sandbox and keeps its variables between calls.

`program` is the engine's half: it starts the service inside a sandbox when its port is first
called. Everything below `inside` is the service's own half. It is sent into the sandbox as text and
run by the sandbox's Python, so it uses the standard library and nothing else.
"""
