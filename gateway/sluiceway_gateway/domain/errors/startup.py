"""Why a process must not run."""

from sluiceway_gateway.domain.errors.root import SluicewayGatewayError


class StartupRefused(SluicewayGatewayError):
    """The process must not run like this; an operator has to change something."""

    code = "startup_refused"
    title = "The gateway does not start"


class InvalidSettings(StartupRefused):
    """A setting is missing, unknown or contradicts another."""

    code = "invalid_settings"


class BindRefused(StartupRefused):
    """The address would expose the gateway without protection."""

    code = "bind_refused"


class WrongRevision(StartupRefused):
    """The database's schema is not the one that this version knows."""

    code = "wrong_revision"


class WrongEncoding(StartupRefused):
    """The database does not keep text as UTF-8."""

    code = "wrong_encoding"
