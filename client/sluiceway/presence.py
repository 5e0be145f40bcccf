"""What writers and readers have in common: that others know of them, and they of others."""

from collections.abc import Mapping
from typing import Any

from sluiceway.endpoint.handle import Attachment, StatusCallback
from sluiceway.errors import OptionError

__all__ = ["Presence"]


class Presence:
    """A writer or reader that may be an endpoint of its channel."""

    _attachment: Attachment | None

    @property
    def endpoint_id(self) -> str | None:
        """Its id, 32 hexadecimal digits; None: it is no endpoint, nobody knows of it."""
        return None if self._attachment is None else self._attachment.id

    @property
    def payload(self) -> Mapping[str, Any] | None:
        """What its counterparts are told: an object of JSON's values, up to 4 KiB, or None."""
        return self.attachment.payload

    @payload.setter
    def payload(self, payload: Mapping[str, Any] | None) -> None:
        self.attachment.payload = payload

    @property
    def finish_requested(self) -> bool:
        """Whether the channel closes or is being deleted, as far as the beats have told.

        A writer should come to its end then; a reader knows that no other writer comes.
        """
        return self._attachment is not None and self._attachment.finish_requested

    def on_status(self, callback: StatusCallback) -> None:
        """Call `callback` with its counterparts, a tuple of Endpoint: now, and when they change.

        It is called in the thread of the beats, which it should not keep; what it raises is
        written to the log.
        """
        self.attachment.listen(callback)

    @property
    def attachment(self) -> Attachment:
        """Its life as an endpoint, for what is built upon readers and writers. Raises OptionError.

        There is none where nobody knows of it.
        """
        if self._attachment is None:
            raise OptionError(
                "nobody knows of this reader or writer, so it has no status: give it a group"
            )
        return self._attachment

    def _excuse(self, *, done: bool) -> None:
        """If all is done that there was to do, note that to let go of it now is to close it."""
        if done and self._attachment is not None:
            self._attachment.session.excuse(self._attachment)

    def _check(self) -> None:
        if self._attachment is not None:
            self._attachment.check()
