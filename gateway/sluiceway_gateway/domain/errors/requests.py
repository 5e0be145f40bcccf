"""What is wrong with a request, whatever the state."""

from sluiceway_gateway.domain.errors.root import SluicewayGatewayError


class InvalidRequest(SluicewayGatewayError):
    """The request is malformed."""

    code = "invalid_request"
    title = "The request is malformed"


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
