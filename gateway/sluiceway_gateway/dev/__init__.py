"""The broker for development, and the demo."""
