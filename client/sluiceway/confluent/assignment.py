"""What a consumer reads, and as whom: partitions that it names, or a share of its group's."""

from collections.abc import Collection, Iterator, Mapping

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    OFFSET_STORED,
    KafkaError,
    Message,
)

from sluiceway.confluent.config import ConsumerSettings
from sluiceway.confluent.errors import AUTO_OFFSET_RESET, INVALID_ARG, STATE, refused
from sluiceway.confluent.fetcher import Fetcher, Part, WakeupEvent
from sluiceway.confluent.members import GroupMember, ManualConsumer, Reader, Subscription, committed
from sluiceway.errors import SluicewayError
from sluiceway.rest.channels import Control

_RESET = {"earliest": OFFSET_BEGINNING, "latest": OFFSET_END}


class Assignment:
    """The channels and partitions of one consumer.

    `readers` are its endpoints, by channel. While a callback of the group's is called, `coming` has
    the partitions that have come, and `chosen` those of them that it has said the beginning of.
    """

    def __init__(self, settings: ConsumerSettings, *, news: WakeupEvent) -> None:
        self._settings = settings
        self._control = settings.control
        self._news = news
        self.subscription = Subscription(settings.control)
        self.fetcher = Fetcher(
            settings.kafka, settings.callbacks, reset=settings.reset, eof=settings.eof
        )
        self.readers: dict[str, Reader] = {}
        self.coming: tuple[Part, ...] | None = None
        self.chosen: set[Part] = set()

    def sharers(self) -> list[GroupMember]:
        """Return its memberships."""
        return [each for each in self.readers.values() if isinstance(each, GroupMember)]

    def lone_parts(self) -> list[Part]:
        """Return the partitions that it named itself."""
        lone = {name for name, each in self.readers.items() if isinstance(each, ManualConsumer)}
        return [part for part in self.fetcher.begun if part[0] in lone]

    def unwanted(self) -> list[GroupMember]:
        """Return its memberships of channels that are not subscribed to any more."""
        return [each for each in self.sharers() if not self.subscription.wants(each.channel)]

    def join(self) -> Iterator[tuple[str, SluicewayError]]:
        """Join at the channels where it is no member yet; give those where that cannot be, once."""
        return self.subscription.join(self.readers, self._join, reading=bool(self.fetcher.begun))

    def starts(
        self, reader: Reader, parts: Mapping[Part, int]
    ) -> tuple[dict[Part, int], list[Message]]:
        """Return where partitions begin, and events for those of which nobody says where.

        An offset that is given counts, then what the group has committed, then auto.offset.reset.
        """
        places: dict[Part, int] = {}
        events: list[Message] = []
        for part, given in parts.items():
            at = reader.known(part[1])
            if given >= 0 or given in (OFFSET_BEGINNING, OFFSET_END):
                places[part] = given
            elif given not in (OFFSET_INVALID, OFFSET_STORED):
                raise refused(INVALID_ARG, f"there is no offset {given} to begin at")
            elif at is not None:
                places[part] = at.offset
            elif isinstance(reader, GroupMember) and part[1] >= reader.first_total:
                # It came when the channel grew: all that is in it is new.
                places[part] = OFFSET_BEGINNING
            elif self._settings.reset in _RESET:
                places[part] = _RESET[self._settings.reset]
            else:
                reason = "the group has committed nothing, and auto.offset.reset is error"
                error = KafkaError(AUTO_OFFSET_RESET, reason)
                events.append(Message(topic=part[0], partition=part[1], error=error))
        return places, events

    def assign(self, wanted: Mapping[Part, int], keep: Collection[Part] = ()) -> list[Message]:
        """Read these partitions and those to keep, and no others; see `starts` for the events.

        Where it raises, all is as it was before.
        """
        self._check(wanted)
        begins: dict[Part, int] = {}
        events: list[Message] = []
        try:
            for channel, places in by_channel(wanted).items():
                reader = self._lone(channel, places)
                for partition, given in places.items():
                    self.fetcher.check((channel, partition))
                    found, told = self.starts(reader, {(channel, partition): given})
                    begins |= found
                    events += told
            begins = self.fetcher.found(begins)
        except BaseException:
            leave_all({each.channel: self.readers.pop(each.channel) for each in self._idle()})
            raise
        self.drop([part for part in self.lone_parts() if part not in keep])
        self.add(begins)
        self.leave(self._idle())
        return events

    def choose(self, wanted: Mapping[Part, int]) -> list[Message]:
        """Begin with partitions that have come, there; see `starts` for the events."""
        chosen = {part: at for part, at in wanted.items() if part in (self.coming or ())}
        events: list[Message] = []
        for channel, places in by_channel(chosen).items():
            parts = {(channel, partition): at for partition, at in places.items()}
            begins, told = self.starts(self.readers[channel], parts)
            self.fetcher.drop(list(begins))
            self.add(begins)
            events += told
        self.chosen |= chosen.keys()
        return events

    def add(self, begins: Mapping[Part, int]) -> None:
        """Read these partitions besides, from here."""
        for part in begins:
            self.fetcher.check(part)  # also makes librdkafka know of those that are new
        self.fetcher.add(begins)
        for channel, places in by_channel({p: self.fetcher.begun[p] for p in begins}).items():
            self.readers[channel].begin(places)

    def drop(self, parts: Collection[Part]) -> None:
        """Read these partitions no more."""
        places = self.fetcher.places(parts)
        for channel, ats in by_channel(places).items():
            self.readers[channel].note(ats)
            self.readers[channel].let_go(tuple(ats), ats)
        self.fetcher.drop(parts)

    def seek(self, part: Part, offset: int) -> None:
        """Go on elsewhere in a partition that is assigned."""
        if offset < 0 and offset not in (OFFSET_BEGINNING, OFFSET_END):
            raise refused(INVALID_ARG, f"there is no offset {offset} to seek")
        self.note()
        self.fetcher.seek(part, offset)

    def note(self) -> None:
        """Note where each partition stands."""
        for channel, places in by_channel(self.fetcher.places(list(self.fetcher.begun))).items():
            self.readers[channel].note(places)

    def keep(self, channel: str, places: Mapping[int, int]) -> None:
        """Commit at one channel what was noted as handed out. Raises SluicewayError."""
        self.readers[channel].commit(places)

    def committed(self, parts: Mapping[Part, int]) -> dict[Part, int]:
        """Ask what the group has committed; OFFSET_INVALID is nothing. Raises GatewayError."""
        found: dict[Part, int] = {}
        for channel in dict.fromkeys(channel for channel, _ in parts):
            self._control.channel(channel)  # raises ChannelNotFound
            kept = committed(self._control, channel, self._settings.group)
            for part in parts:
                if part[0] == channel:
                    at = kept.get(part[1])
                    found[part] = OFFSET_INVALID if at is None else at.offset
        return {part: found[part] for part in parts}

    def require(self, parts: Collection[Part]) -> None:
        """Raise KafkaException _STATE for a partition that is not assigned."""
        for channel, partition in parts:
            reader = self.readers.get(channel)
            if reader is None or partition not in reader.held:
                raise refused(
                    STATE,
                    f"partition {partition} of {channel!r} is not assigned to this consumer, which "
                    "commits what it reads",
                )

    def look_at(self, part: Part) -> None:
        """Learn of a partition that may not be read here. Raises GatewayError, KafkaException."""
        if not self.fetcher.knows(part[0]):
            self.fetcher.meet(self._control.connection(part[0], "read"))
        self.fetcher.check(part)

    def leave(self, readers: Collection[Reader]) -> None:
        """Leave these channels. Raises GatewayError."""
        for each in list(readers):
            self.drop([part for part in self.fetcher.begun if part[0] == each.channel])
            del self.readers[each.channel]
            each.attachment.detach()

    def lose(self, reader: GroupMember) -> None:
        """End a membership that is none any more; the channel is not joined again by itself."""
        self.drop([part for part in self.fetcher.begun if part[0] == reader.channel])
        del self.readers[reader.channel]
        self.subscription.lose(reader.channel)
        leave_all({reader.channel: reader})

    def close(self) -> None:
        """Let go of Kafka and of the gateway."""
        self.fetcher.close()
        self._control.close()

    def _check(self, wanted: Mapping[Part, int]) -> None:
        for channel, partition in wanted:
            if not channel or partition < 0:
                raise refused(INVALID_ARG, f"{channel!r} [{partition}] is no partition")

    def _idle(self) -> list[Reader]:
        busy = {channel for channel, _ in self.fetcher.begun}
        return [each for name, each in self.readers.items() if name not in busy]

    def _lone(self, channel: str, places: Mapping[int, int]) -> Reader:
        """Return who reads a channel by itself, knowing where the group stands there now."""
        reader = self.readers.get(channel)
        if isinstance(reader, ManualConsumer):
            stored = [p for p, given in places.items() if given in (OFFSET_INVALID, OFFSET_STORED)]
            if stored:
                reader.learn(stored)
            return reader
        return self._met(ManualConsumer(self._control, channel, self._settings.group))

    def _join(self, channel: str) -> None:
        self._met(GroupMember(self._control, channel, self._settings.group, news=self._news))

    def _met(self, reader: Reader) -> Reader:
        try:
            self.fetcher.meet(reader.connection)
        except BaseException as error:
            reader.attachment.fail(error)
            raise
        self.readers[reader.channel] = reader
        return reader


def by_channel(places: Mapping[Part, int]) -> dict[str, dict[int, int]]:
    """Return places by channel and partition."""
    found: dict[str, dict[int, int]] = {}
    for (channel, partition), at in places.items():
        found.setdefault(channel, {})[partition] = at
    return found


def leave_all(readers: dict[str, Reader], control: Control | None = None) -> None:
    """Leave every channel; what stands against it is nobody's to hear any more."""
    for each in list(readers.values()):
        try:
            each.attachment.detach()
        except SluicewayError:
            continue
    readers.clear()
    if control is not None:
        control.close()
