"""The code interpreter: runs code inside a sandbox and keeps its variables between calls.

`launcher` is the engine's half: it starts the service inside a sandbox when its port is first
requested. Everything below `inside` is the service itself. It is sent into the sandbox as text and
run by the sandbox's Python, so it uses only the standard library.
"""
