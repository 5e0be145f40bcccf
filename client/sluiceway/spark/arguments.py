"""The options of one read or write as Spark hands them over: sorted out, and read by their kind."""

import difflib
from collections.abc import Collection, Mapping
from typing import Final, Literal, TypeVar

from sluiceway.errors import OptionError
from sluiceway.kafka.config import CONNECTION, CONSUMER, PRODUCER, refuse_unlisted

_KAFKA_PREFIX: Final = "kafka."
_REASONS: Final = {
    "token": "tokens are never options, since plans and logs show options: set SLUICEWAY_TOKEN "
    "or SLUICEWAY_TOKEN_FILE in the driver's environment",
    "paths": "a read takes one channel: load each and unite the dataframes",
    "subscribe": 'the channel is named by load("name") and save("name")',
    "topic": 'the channel is named by load("name") and save("name")',
    "gateway": "the gateway's URL goes to sluiceway.spark.register(spark, gateway=...) or "
    "SLUICEWAY_URL",
    "kafka.bootstrap.servers": "the gateway tells where Kafka is",
    "kafka.delivery.timeout.ms": "use deliveryTimeoutMs",
    **dict.fromkeys(
        ("kafka.sasl.password", "kafka.ssl.key.pem"),
        "plans and event logs show options: set SLUICEWAY_KAFKA_CREDENTIALS_FILE in the driver's "
        "and the executors' environment",
    ),
}

T = TypeVar("T")


class Arguments:
    """Options by their names in any case, all of them known to `verb`.

    `known` are the names that `verb` takes, `elsewhere` those of other verbs with that verb;
    `ignored` are Spark's own, which mean nothing here. Raises OptionError for all others, with
    what may have been meant.
    """

    def __init__(
        self,
        options: Mapping[str, str],
        *,
        verb: str,
        known: Collection[str],
        elsewhere: Mapping[str, str],
        ignored: Collection[str] = (),
        side: Literal["consumer", "producer"],
    ) -> None:
        self._given = {name.lower(): value for name, value in options.items()}
        self.kafka: dict[str, str] = {}
        names = {name.lower(): name for name in known}
        others = {name.lower(): other for name, other in elsewhere.items()}
        passed_over = {"path", *(name.lower() for name in ignored)}
        for name in sorted(self._given):
            if name in names or name in passed_over:
                continue
            if name in _REASONS:
                raise OptionError(f"{name!r} is no option of a channel: {_REASONS[name]}")
            if name.startswith(_KAFKA_PREFIX):
                self.kafka[name.removeprefix(_KAFKA_PREFIX)] = self._given[name]
                continue
            if name in others:
                raise OptionError(
                    f"{name!r} is an option of a {others[name]}, not of a {verb}: leave it out"
                )
            close = difflib.get_close_matches(name, names, n=1)
            advice = (
                f"did you mean {names[close[0]]!r}?"
                if close
                else f"a {verb} knows {', '.join(sorted(names.values()))} and kafka.*"
            )
            raise OptionError(f"there is no option {name!r}: {advice}")
        refuse_unlisted(self.kafka, CONNECTION, CONSUMER if side == "consumer" else PRODUCER)

    def channel(self, call: str) -> str:
        """Return the channel's name, which `call` was to be given."""
        channel = self._given.get("path", "").strip()
        if not channel:
            raise OptionError(f'no channel is named: give its name as in .{call}("flights")')
        return channel

    def text(self, option: str) -> str | None:
        """Return the option as it was given, or None."""
        return self._given.get(option.lower())

    def number(self, option: str, low: int, high: int) -> int | None:
        """Return the option as a whole number within the bounds, or None."""
        text = self.text(option)
        if text is None:
            return None
        digits = text.strip()
        whole = digits.isascii() and digits.isdigit() and len(digits) < 20
        if not whole or not low <= int(digits) <= high:
            raise OptionError(f"{option} is {text!r}; it takes a whole number from {low} to {high}")
        return int(digits)

    def choice(self, option: str, choices: Mapping[str, T], default: T) -> T:
        """Return what the option's word stands for."""
        text = self.text(option)
        if text is None:
            return default
        if text.strip().lower() not in choices:
            raise OptionError(f"{option} is {text!r}; it takes {' or '.join(choices)}")
        return choices[text.strip().lower()]

    def flag(self, option: str, *, default: bool) -> bool:
        """Return the option as true or false."""
        return self.choice(option, {"true": True, "false": False}, default)
