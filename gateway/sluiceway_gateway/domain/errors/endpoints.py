"""What the state of endpoints and their groups does not allow."""

from sluiceway_gateway.domain.errors.conflicts import Conflict
from sluiceway_gateway.domain.errors.requests import NotFound


class EndpointNotFound(NotFound):
    """No endpoint of this channel has this id."""

    code = "endpoint_not_found"
    title = "No such endpoint"


class GroupNotFound(NotFound):
    """No reader of this channel was ever attached in this group."""

    code = "group_not_found"
    title = "No such group"


class Fenced(Conflict):
    """The endpoint's place was taken: by another instance, or by somebody who removed it."""

    code = "fenced"
    title = "The endpoint's place was taken"


class IllegalTransition(Conflict):
    """An endpoint in its state cannot do this next."""

    code = "illegal_transition"
    title = "Not in the endpoint's state"


class EndpointIdReused(Conflict):
    """The id belongs to another endpoint."""

    code = "endpoint_id_reused"
    title = "The id belongs to another endpoint"


class GroupSize(Conflict):
    """The group has another size, and members that live."""

    code = "group_size"
    title = "The group has another size"


class GroupMode(Conflict):
    """The group has another mode, and members that live."""

    code = "group_mode"
    title = "The group has another mode"


class GroupLargerThanPinned(Conflict):
    """More members than the channel may ever have partitions."""

    code = "group_larger_than_pinned"
    title = "The group is larger than the channel may grow"


class MembersOpen(Conflict):
    """Other members of the group are at work."""

    code = "members_open"
    title = "Other members of the group are open"
    retriable = True


class NoGroup(Conflict):
    """What has no group has no positions."""

    code = "no_group"
    title = "Only readers of a group commit"


class NotAssigned(Conflict):
    """The partition is another member's, or there is none."""

    code = "not_assigned"
    title = "The partition is not the member's"


class StaleGeneration(Conflict):
    """The group was resized or reset meanwhile."""

    code = "stale_generation"
    title = "The group is at another generation"


class TopicChanged(Conflict):
    """The positions are of another topic."""

    code = "topic_changed"
    title = "The positions are of another topic"


class GoesBack(Conflict):
    """Committed positions go forward; going back is the reset."""

    code = "goes_back"
    title = "A commit does not go back"


class PositionMoved(Conflict):
    """Somebody else moved the position since it was looked at."""

    code = "position_moved"
    title = "The position was moved meanwhile"
