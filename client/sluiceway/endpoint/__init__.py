"""An attached reader or writer: heartbeats, assignment, commits, stop condition."""

__all__: list[str] = []
