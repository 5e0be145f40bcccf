"""The limit on request bodies."""

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sluiceway_gateway.domain.errors import BodyTooLarge
from sluiceway_gateway.http.problems import problem_response


class BodyLimit:
    """ASGI middleware that reads no more of a body than `limit_bytes`.

    A length that is announced beyond it is answered at once; one that is not
    announced ends the reading with BodyTooLarge, which the application answers.
    """

    def __init__(self, app: ASGIApp, *, limit_bytes: int) -> None:
        self._app = app
        self._limit_bytes = limit_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = Headers(scope=scope).get("content-length", "0")
        # The server refuses what is not a number.
        if len(announced) > 18 or int(announced) > self._limit_bytes:
            await problem_response(self._too_large())(scope, receive, send)
            return
        taken = 0

        async def limited() -> Message:
            nonlocal taken
            message = await receive()
            if message["type"] == "http.request":
                taken += len(message.get("body", b""))
                if taken > self._limit_bytes:
                    raise self._too_large()
            return message

        await self._app(scope, limited, send)

    def _too_large(self) -> BodyTooLarge:
        return BodyTooLarge(f"A request's body has at most {self._limit_bytes} bytes; send less.")
