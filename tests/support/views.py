"""What a gateway shows of a channel, for tests of what it must not show."""

import httpx

__all__ = ["failed_cause", "views"]


def views(url: str, channel: str) -> str:
    """Return all that can be read of a channel, its endpoints and their history, as one text."""
    with httpx.Client(base_url=url, timeout=30) as http:

        def read(path: str) -> httpx.Response:
            return http.get(path).raise_for_status()

        base = f"/v1/channels/{channel}"
        listed = read(f"{base}/endpoints")
        answers = [
            read(base),
            read(f"{base}/status"),
            read("/v1/status?limit=1000"),
            read("/metrics"),
            listed,
            *(read(f"{base}/endpoints/{each['id']}") for each in listed.json()["items"]),
        ]
        told = [each.text for each in answers]
        with http.stream("GET", f"{base}/status/events") as stream:
            told.append(next(line for line in stream.iter_lines() if line.startswith("data:")))
    return "\n".join(told)


def failed_cause(url: str, channel: str, role: str) -> str:
    """Return the cause of the channel's one endpoint of a role that is in error."""
    with httpx.Client(base_url=url, timeout=30) as http:
        listed = http.get(f"/v1/channels/{channel}/endpoints").raise_for_status().json()["items"]
    failed = [each for each in listed if (each["role"], each["state"]) == (role, "error")]
    (cause,) = (each["cause"] for each in failed)
    assert isinstance(cause, str)
    return cause
