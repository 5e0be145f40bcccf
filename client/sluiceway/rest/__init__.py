"""HTTP requests to the gateway: transport, authentication, and responses as values."""

__all__: list[str] = []
