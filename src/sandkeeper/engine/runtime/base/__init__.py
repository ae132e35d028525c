"""The base template: what a sandbox shows of the host, and what is made besides."""
