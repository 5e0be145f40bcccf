"""An attached reader or writer: heartbeats, assignment, commits, stop condition."""
