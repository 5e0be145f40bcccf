"""HTTP calls to the gateway: transport, authentication, requests and answers."""

__all__: list[str] = []
