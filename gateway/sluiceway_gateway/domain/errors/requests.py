"""What is wrong with a request, whatever the state."""

from collections.abc import Sequence
from typing import Self

from sluiceway_gateway.domain.errors.root import SluicewayGatewayError, Violation

MOST_VIOLATIONS = 20
"""In one error."""


class InvalidRequest(SluicewayGatewayError):
    """The request is malformed."""

    code = "invalid_request"
    title = "The request is malformed"

    @classmethod
    def malformed(cls, violations: Sequence[Violation], *, count: int = 0) -> Self:
        """Return an error that lists the first 20 violations and counts the rest of `count`."""
        listed = tuple(violations[:MOST_VIOLATIONS])
        texts = [f"{each.pointer or 'the body'}: {each.message}" for each in listed]
        more = max(count, len(violations)) - len(listed)
        if more:
            texts.append(f"and {more:,} more")
        return cls(f"Malformed: {'; '.join(texts)}.", listed)


class InvalidSchema(InvalidRequest):
    """The schema is not one that a channel can have."""

    code = "invalid_schema"
    title = "The schema cannot be used"


class ConfigNotAllowed(InvalidRequest):
    """A topic setting that channels do not take, or a value that it cannot have."""

    code = "config_not_allowed"
    title = "The topic configuration is refused"


class BodyTooLarge(SluicewayGatewayError):
    """The request's body passes the limit."""

    code = "body_too_large"
    title = "The request's body is too large"


class MalformedHttp(SluicewayGatewayError):
    """What came is not HTTP/1.1."""

    code = "malformed_http"
    title = "Not an HTTP request"


class UrlTooLong(SluicewayGatewayError):
    """The request's URL passes the limit."""

    code = "url_too_long"
    title = "The URL is too long"


class HeadersTooLarge(SluicewayGatewayError):
    """The request's headers pass a limit."""

    code = "headers_too_large"
    title = "The headers are too large"


class RequestTimeout(SluicewayGatewayError):
    """The request did not arrive in time."""

    code = "request_timeout"
    title = "The request did not arrive in time"
    retriable = True


class Unauthenticated(SluicewayGatewayError):
    """No token, or none that is valid."""

    code = "unauthenticated"
    title = "A valid token is needed"


class Forbidden(SluicewayGatewayError):
    """The token is valid, but its scopes do not cover the request."""

    code = "forbidden"
    title = "Not allowed"


class NotFound(SluicewayGatewayError):
    """There is no such thing."""

    code = "not_found"
    title = "Not found"


class ChannelNotFound(NotFound):
    """There is no channel of this name, or not of this uid any more."""

    code = "channel_not_found"
    title = "No such channel"


class MethodNotAllowed(SluicewayGatewayError):
    """The resource does not have this method."""

    code = "method_not_allowed"
    title = "Method not allowed"


class PreconditionFailed(SluicewayGatewayError):
    """`If-Match` or `If-None-Match` does not hold."""

    code = "precondition_failed"
    title = "The precondition does not hold"
