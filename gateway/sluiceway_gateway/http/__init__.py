"""The HTTP interface: wire forms, guards, problems, routes."""
