"""What a consumer reads, and as whom: partitions that it names, or a share of its group's."""

import math
import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    OFFSET_STORED,
    KafkaError,
    Message,
)

from sluiceway.confluent.failures import AUTO_OFFSET_RESET, INVALID_ARG, STATE, refused
from sluiceway.confluent.fetching import Fetcher, Part
from sluiceway.confluent.news import News
from sluiceway.confluent.readers import Lone, Reader, Sharer, committed
from sluiceway.confluent.settings import ConsumerSettings
from sluiceway.control import Control
from sluiceway.errors import SluicewayError

_RESET = {"earliest": OFFSET_BEGINNING, "latest": OFFSET_END}
_AGAIN_S = 2.0


class Assignment:
    """The channels and partitions of one consumer.

    `readers` are its endpoints, by channel. `coming` has, while `on_assign` is called, where the
    partitions that have come are to begin.
    """

    def __init__(self, settings: ConsumerSettings, *, news: News) -> None:
        self._settings = settings
        self._control = settings.control
        self._news = news
        self._patterns: tuple[str, ...] = ()
        self._tried_s: dict[str, float] = {}
        self._told: dict[str, str] = {}
        self.subscribed = False
        self.fetcher = Fetcher(
            settings.kafka, settings.callbacks, reset=settings.reset, eof=settings.eof
        )
        self.readers: dict[str, Reader] = {}
        self.coming: dict[Part, int] | None = None

    def subscribe(self, names: Sequence[str]) -> None:
        """Note the channels to join, and regexes of them."""
        self._patterns, self._tried_s, self._told = tuple(names), {}, {}
        self.subscribed = bool(names)

    def sharers(self) -> list[Sharer]:
        """Return its memberships."""
        return [each for each in self.readers.values() if isinstance(each, Sharer)]

    def lone_parts(self) -> list[Part]:
        """Return the partitions that it named itself."""
        lone = {name for name, each in self.readers.items() if isinstance(each, Lone)}
        return [part for part in self.fetcher.begun if part[0] in lone]

    def unwanted(self) -> list[Sharer]:
        """Return its memberships of channels that are not subscribed to any more."""
        return [each for each in self.sharers() if not self._wants(each.channel)]

    def join(self) -> Iterator[tuple[str, SluicewayError]]:
        """Join at the channels where it is no member yet; give those where that cannot be, once."""
        now_s = time.monotonic()
        for name in self._patterns:
            if name in self.readers or now_s < self._tried_s.get(name, 0.0):
                continue
            self._tried_s[name] = now_s + _AGAIN_S
            try:
                for channel in self._matching(name):
                    self._join(channel)
                self._told.pop(name, None)
            except SluicewayError as error:
                if self._told.get(name) != error.code:
                    self._told[name] = error.code
                    yield name, error

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
            elif isinstance(reader, Sharer) and part[1] >= reader.first_total:
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
        """Read these partitions and those to keep, and no others; see `starts` for the events."""
        self._check(wanted)
        for channel in {channel for channel, _ in wanted} - self.readers.keys():
            lone = Lone(self._control, channel, self._settings.group)
            self.readers[channel] = lone
            self._met(lone)
        begins: dict[Part, int] = {}
        events: list[Message] = []
        for part, given in wanted.items():
            self.fetcher.check(part)
            places, told = self.starts(self.readers[part[0]], {part: given})
            begins |= places
            events += told
        self.drop([part for part in self.lone_parts() if part not in keep])
        self.add(begins)
        self._leave_idle()
        return events

    def choose(self, wanted: Mapping[Part, int]) -> None:
        """Have partitions that have come begin elsewhere."""
        coming = self.coming or {}
        self.coming = coming | {part: at for part, at in wanted.items() if part in coming}

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
            each.attachment.leave()

    def lose(self, reader: Sharer) -> None:
        """End a membership that is none any more; the channel is not joined again by itself."""
        self.drop([part for part in self.fetcher.begun if part[0] == reader.channel])
        del self.readers[reader.channel]
        self._tried_s[reader.channel] = math.inf
        leave_all({reader.channel: reader})

    def close(self) -> None:
        """Let go of Kafka and of the gateway."""
        self.fetcher.close()
        self._control.close()

    def _check(self, wanted: Mapping[Part, int]) -> None:
        for channel, partition in wanted:
            if not channel or partition < 0:
                raise refused(INVALID_ARG, f"{channel!r} [{partition}] is no partition")

    def _leave_idle(self) -> None:
        busy = {channel for channel, _ in self.fetcher.begun}
        self.leave([each for name, each in self.readers.items() if name not in busy])

    def _join(self, channel: str) -> None:
        # Who was put out of a channel comes back when it subscribes again.
        if channel not in self.readers and self._tried_s.get(channel) != math.inf:
            sharer = Sharer(self._control, channel, self._settings.group, news=self._news)
            self.readers[channel] = sharer
            self._met(sharer)

    def _met(self, reader: Reader) -> None:
        self.fetcher.meet(reader.connection)

    def _matching(self, name: str) -> list[str]:
        if not name.startswith("^"):
            return [name]
        return [each.name for each in self._control.channels() if re.match(name, each.name)]

    def _wants(self, channel: str) -> bool:
        return any(
            re.match(name, channel) if name.startswith("^") else name == channel
            for name in self._patterns
        )


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
            each.attachment.leave()
        except SluicewayError:
            continue
    readers.clear()
    if control is not None:
        control.close()
