"""HTTP: the server, routing, authentication, errors, JSON."""
