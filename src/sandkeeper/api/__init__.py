"""The HTTP interface: routes, schemas, auth, live streams. It holds no rules of its own."""
