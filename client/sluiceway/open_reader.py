"""Opening a reader of a channel: its options, its place, and what it may see."""

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from sluiceway import offsets
from sluiceway.endpoint.handle import EndpointHandle
from sluiceway.errors import OptionError
from sluiceway.group_reader import DynamicGroupReader, OnPartitions
from sluiceway.ledger.visibility import visibility_of
from sluiceway.reader import ChannelReader
from sluiceway.rest.channels import Control
from sluiceway.rest.endpoint_models import Membership
from sluiceway.rest.models import Connection
from sluiceway.schema import Schema

__all__ = ["open_reader"]


def open_reader(
    control: Control,
    *,
    connect: Callable[[], Connection],
    attach: Callable[[], EndpointHandle],
    patience_s: float | None,
    schema: Schema | None,
    member: Membership | None,
    until: offsets.Until,
    partitions: Sequence[int] | None,
    snapshot: int | datetime | None,
    on_assign: OnPartitions | None,
    on_revoke: OnPartitions | None,
    **options: Any,
) -> ChannelReader:
    """Open a reader; `options` are ChannelReader's.

    It is attached as a member of a group, and where it has to know when the writers have finished.
    A reader that cannot be opened is reported to the gateway as failed. Raises OptionError and the
    errors of ChannelReader.
    """
    open_as: Callable[..., ChannelReader] = ChannelReader
    if member is not None and member.dynamic:
        open_as = partial(DynamicGroupReader, on_assign=on_assign, on_revoke=on_revoke)
    elif on_assign is not None or on_revoke is not None:
        raise OptionError("on_assign and on_revoke are of dynamic groups: give dynamic=True")
    if member is not None and partitions is not None:
        raise OptionError("partitions and group exclude each other: a group assigns them")
    if snapshot is not None:
        until = _until_of_snapshot(until, member)
    handle, connection = None, None
    if until == "finished" or member is not None:
        handle = attach()
        connection = handle.attached.connection
    elif patience_s is not None:
        raise OptionError("patience_s is of attached readers: give a group or until='finished'")
    try:
        if connection is None:
            connection = connect()
        visibility = visibility_of(
            control.ledger, connection, grace_s=control.grace_s, snapshot=snapshot
        )
        if schema is not None:
            connection = connection.for_reading(schema)
        return open_as(
            connection,
            until=until,
            partitions=partitions,
            refresh=connect,
            handle=handle,
            visibility=visibility,
            **options,
        )
    except BaseException as error:
        if handle is not None:
            handle.fail(error)
        raise


def _until_of_snapshot(until: offsets.Until, member: Membership | None) -> offsets.Until:
    """Return where a reader of a snapshot ends: where the snapshot does."""
    if member is not None:
        raise OptionError(
            "snapshot and group exclude each other: a snapshot is read from its start to its end, "
            "a group goes on from its committed positions"
        )
    if until not in ("finished", "now"):
        raise OptionError(
            f"until is {until!r}, but a snapshot has an end of its own: leave until out"
        )
    return "now"
