"""What a batch read will read: asked of Kafka once, by the driver's planning."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from sluiceway.errors import OffsetOutOfRange
from sluiceway.kafka.consumer import MessageStream
from sluiceway.kafka.own import OwnStream
from sluiceway.spark.connections import Known, Link
from sluiceway.spark.endpoints import Job, Part, Work
from sluiceway.spark.offsets import AtTime, Bound, OffsetRange, OnLoss, refuse_loss, resolve
from sluiceway.spark.options import ReadOptions, SourceOptions
from sluiceway.spark.splits import DEFAULT_MAX_MESSAGES, split

LOGGER = logging.getLogger(__name__)

_ASK_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True, kw_only=True)
class Share:
    """What one task reads, and what is known of the channel.

    Where that is current, it is younger than the offsets' end, so it has the schema of every
    message in them. Where it is not, a message of another schema is no stranger's for sure.
    """

    known: Known
    offsets: OffsetRange
    part: Part | None = None
    """Of a read that others see."""


def plan(link: Link, options: ReadOptions) -> list[Share]:
    """Return the pieces to read, one a task; none where there is nothing to read.

    The end is fixed here: messages that arrive later are not read. Raises TopicGone,
    KafkaUnavailable, OffsetOutOfRange, OptionError.
    """
    connection = link.last
    timeout_s = min(_ASK_TIMEOUT_S, options.poll_timeout_ms / 1000)
    stream = OwnStream(connection, options.kafka, timeout_s=timeout_s)
    try:
        stream.verify()
        partitions = range(connection.partitions)
        ranges = resolve(
            starting=options.starting,
            ending=options.ending,
            watermarks=stream.watermarks(partitions),
            starting_at_time=at_time(stream, options.starting, partitions),
            ending_at_time=at_time(stream, options.ending, partitions),
            on_loss=loss_handler(options),
        )
    finally:
        stream.close()
    try:
        return shares(link.known(), ranges, options)
    finally:
        link.close()


def seen(shares: list[Share], job: Job | None, gateway_url: str | None) -> list[Share]:
    """Return the pieces as parts of a read that others see; as they are where nobody does."""
    if not shares or gateway_url is None:
        return shares
    work = Work.attach(job, gateway_url, shares[0].known.connection, "reader")
    if work is None:
        return shares
    return [
        replace(share, part=Part(work=work, number=number, parts=len(shares)))
        for number, share in enumerate(shares)
    ]


def shares(known: Known, ranges: tuple[OffsetRange, ...], options: SourceOptions) -> list[Share]:
    """Cut ranges into what tasks read; `known` was asked for when their ends were there."""
    max_messages = options.max_messages or DEFAULT_MAX_MESSAGES[known.connection.format]
    return [
        Share(known=known, offsets=piece)
        for piece in split(ranges, max_messages=max_messages, min_splits=options.min_splits)
    ]


def loss_handler(options: SourceOptions) -> OnLoss:
    """Return what meets offsets that Kafka does not hold: an error, or a line in the log."""
    return _log_loss if not options.fail_on_data_loss else _refuse_loss


def at_time(stream: MessageStream, bound: Bound, partitions: range) -> Mapping[int, int]:
    """Return the offsets of a bound that is a time, nothing for the others."""
    return stream.offsets_at(bound.timestamp_ms, partitions) if isinstance(bound, AtTime) else {}


def _refuse_loss(error: OffsetOutOfRange) -> None:
    error.add_note(
        "To read on without what is lost, from the earliest offset that is kept, set "
        '.option("failOnDataLoss", "false").'
    )
    refuse_loss(error)


def _log_loss(error: OffsetOutOfRange) -> None:
    LOGGER.warning("failOnDataLoss is false, so the read goes on with what there is: %s", error)
