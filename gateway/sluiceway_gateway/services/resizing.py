"""Changing the size of a group of readers while it runs."""

from collections.abc import Callable

from sluiceway_gateway.auth.model import Action, Principal
from sluiceway_gateway.channels import store as channels_store
from sluiceway_gateway.channels.model import Channel
from sluiceway_gateway.clock import Clock, system_clock
from sluiceway_gateway.db.engine import Database
from sluiceway_gateway.domain.errors import GroupLargerThanPinned, GroupNotFound, GroupSize
from sluiceway_gateway.endpoints import history
from sluiceway_gateway.endpoints import store as endpoints_store
from sluiceway_gateway.endpoints.model import ANONYMOUS, Mode, Role, State, event
from sluiceway_gateway.endpoints.placement import superseded
from sluiceway_gateway.groups import store as groups_store
from sluiceway_gateway.groups.model import Group, resized
from sluiceway_gateway.offsets.model import require_generation
from sluiceway_gateway.services.incarnation import incarnation


class Resizing:
    """The sizes of one database's groups."""

    def __init__(
        self, database: Database, *, notify: Callable[[], None], clock: Clock = system_clock
    ) -> None:
        """`notify` is called after each change."""
        self._database = database
        self._notify = notify
        self._clock = clock

    def resize(
        self,
        name: str,
        group: str,
        *,
        size: int,
        generation: int,
        uid: str,
        principal: Principal,
    ) -> Group:
        """Give a group another size, in a new generation; its positions stay where they are.

        Its members are fenced, but for those that have closed: whoever is to read on attaches with
        the new size. A group that has the size stays as it is, and so a repeat changes nothing.
        Raises ChannelNotFound, UidMismatch, GroupNotFound, GroupSize for a dynamic group,
        GroupLargerThanPinned, StaleGeneration unless it is at `generation`, and Forbidden.
        """
        principal.require(Action.READ, name)
        with self._database.write() as tx:
            now = self._clock()
            channel = incarnation(name, channels_store.hold(tx, name), uid)
            found = groups_store.find(tx, channel.uid, Role.READER, group)
            if found is None or group == ANONYMOUS:
                raise GroupNotFound(
                    f"No reader was ever attached to the channel {name!r} in a group {group!r}."
                )
            _require_fixed(found)
            if found.size == size:
                return found
            require_generation(found, generation)
            _require_partitions(channel, found, size)
            following = resized(found, size, now=now)
            members = endpoints_store.members(tx, channel.uid, Role.READER, group)
            # Commits under way end first; those that come after are refused.
            held = endpoints_store.hold(tx, [e.id for e in members if e.state is not State.CLOSED])
            cause = f"the group was resized from {found.size} to {size}"
            outcasts = [(each, superseded(each, by=cause, now=now)) for each in held.values()]
            endpoints_store.save(tx, outcasts)
            groups_store.save(tx, following)
            lines = [event(each, by=principal.id, at=now, cause=cause) for _, each in outcasts]
            history.add(tx, [(channel.uid, each) for each in lines])
            endpoints_store.revise(tx, [channel.uid])
        self._notify()
        return following


def _require_fixed(group: Group) -> None:
    if group.dynamic:
        raise GroupSize(
            f"The group {group.name!r} is dynamic: its size is how many members it has. Attach "
            "more of them, or detach some."
        )


def _require_partitions(channel: Channel, group: Group, size: int) -> None:
    stays = channel.spec.pinned or channel.adopted
    if stays and group.mode is Mode.SHARED and size > channel.spec.partitions:
        raise GroupLargerThanPinned(
            f"The channel {channel.name!r} has {channel.spec.partitions} partitions and does not "
            f"grow, so the group {group.name!r} cannot have {size} members."
        )
