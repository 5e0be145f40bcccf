"""HTTP calls to the gateway: transport, authentication, requests and answers."""
