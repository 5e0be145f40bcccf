"""The one version of both sides of the wire."""

__version__ = "0.1.0"
