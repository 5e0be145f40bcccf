"""Who is at a channel: asking for them, waiting for them, taking somebody away."""

from collections.abc import Callable, Sequence

from sluiceway.endpoint.waiting import Meeting, WaitedState
from sluiceway.life import ChannelLife
from sluiceway.rest.endpoint_models import Endpoint

__all__ = ["ChannelCompany"]


class ChannelCompany(ChannelLife):
    """A channel with its writers and readers."""

    def endpoints(self) -> tuple[Endpoint, ...]:
        """Ask for all writers and readers, the latest instance of each place."""
        return self._meeting().endpoints()

    def wait_for(
        self,
        *,
        writers: int = 0,
        readers: int = 0,
        state: WaitedState = "opened",
        timeout_s: float = 60.0,
    ) -> tuple[Endpoint, ...]:
        """Return the endpoints once so many writers and readers have come to `state`.

        "opened" waits until they have come at all, "started" until they work, "closed" until
        they, and all others of their role, have finished. Raises SluicewayTimeout, which says who
        is missing.
        """
        return self._meeting().wait_for(
            writers=writers, readers=readers, state=state, timeout_s=timeout_s
        )

    def wait_until(
        self,
        absent: Callable[[Sequence[Endpoint]], list[str]],
        *,
        timeout_s: float = 60.0,
        every_s: float = 20.0,
    ) -> tuple[Endpoint, ...]:
        """Return the endpoints once `absent`, which is given them, names nobody any more.

        `absent` is called when an endpoint changes, and every `every_s`, 20 s at most. Raises
        SluicewayTimeout with the names.
        """
        return self._meeting().wait_until(absent, timeout_s=timeout_s, every_s=every_s)

    def dismiss(self, *endpoint_ids: str) -> None:
        """Take endpoints away: they count no more, and what they ask is refused as fenced.

        Readers take a writer that failed, or was lost, for one that finished, with all that is in
        the channel now; so they read what it wrote, and raise no WriterFailed or WriterLost for
        it: `channel.dismiss(*error.endpoints)`. Repeated, it changes nothing. Needs the scope
        `manage`. Raises Conflict for an id that is none of the channel's, and GatewayUnavailable,
        also while Kafka does not tell where the writer's records end.
        """
        for each in endpoint_ids:
            self._control.endpoints.dismiss(self.name, each, uid=self.uid)

    def _meeting(self) -> Meeting:
        return Meeting(self._control.endpoints, self.name)
