"""What the gateway said, or that it said nothing."""

from collections.abc import Mapping, Sequence

from sluiceway.errors.root import SluicewayError


class GatewayError(SluicewayError):
    """The gateway refused a call or failed at it.

    `status` is the HTTP status (None: there was no answer), `code` the problem's code and
    `errors` its list of `{"pointer", "message"}`, empty where it has none.
    """

    code = "gateway_error"
    tells_no_values = True

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        code: str | None = None,
        retriable: bool | None = None,
        errors: Sequence[Mapping[str, str]] = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.errors = tuple(errors)
        self.code = self.code if code is None else code
        self.retriable = self.retriable if retriable is None else retriable


class GatewayUnavailable(GatewayError):
    """The gateway gave no answer, or 503, as often as it was asked."""

    code = "gateway_unavailable"
    retriable = True


class GatewayAccessFailed(GatewayUnavailable):
    """Something answers, but its certificate or its protocol does not fit; it will not heal."""

    code = "gateway_access_failed"
    retriable = False


class Unauthenticated(GatewayError):
    """The gateway knows no such token, or none was sent."""

    code = "unauthenticated"


class Forbidden(GatewayError):
    """The token's scopes do not cover the call."""

    code = "forbidden"


class ChannelNotFound(GatewayError):
    """There is no channel of that name, or it is no longer the one that was opened."""

    code = "channel_not_found"


class ChannelNotReady(GatewayError):
    """The channel is there, its topic is not; the message carries the condition's words."""

    code = "channel_not_ready"
    retriable = True


class Conflict(GatewayError):
    """What the channel is does not allow what was asked; `code` says what stands against it."""

    code = "conflict"


class ChannelClosed(Conflict):
    """The channel was closed: its records are read as before, nobody writes any more."""

    code = "channel_closed"


class Fenced(Conflict):
    """The endpoint's place was taken: what it sends counts no more. Stop.

    The message says by what: another instance, somebody who removed it, another size of the group.
    """

    code = "fenced"


class StaleGeneration(Conflict):
    """The group was changed, or reset, since this endpoint attached; open it anew.

    A member of a dynamic group was lost, or not waited for any longer: it reads on instead, from
    what is committed.
    """

    code = "stale_generation"


class InvalidRequest(GatewayError):
    """The gateway refused the content of a request; `errors` points at the fields."""

    code = "invalid_request"


class IncompatibleGateway(GatewayError):
    """The answer is not one that this version of the client understands."""

    code = "incompatible_gateway"
