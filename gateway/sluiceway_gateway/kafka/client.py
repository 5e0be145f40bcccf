"""librdkafka's admin client: futures to results and rejections."""

from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import Any, TypeGuard

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from sluiceway.kafka.diagnosis import Finding, diagnosis
from sluiceway_gateway.errors import AccessFailure, InvalidSettings, KafkaUnavailable, Misfit
from sluiceway_gateway.kafka.errors import rejection
from sluiceway_gateway.kafka.model import Cause, Rejection
from sluiceway_gateway.kafka.properties import refusals

#: What a client may take beyond the timeout that it was given before it is given up.
_GRACE_S = 5.0
_WHENCE = "the gateway's Kafka properties are those of SLUICEWAY_KAFKA_PROPERTIES"
_WRONG_CREDENTIALS = (
    "it refuses the user, the password or the mechanism; correct sasl.username, sasl.password and "
    "sasl.mechanism in SLUICEWAY_KAFKA_PROPERTIES, and start the gateway again"
)
_REFUSED = frozenset(
    {
        KafkaError._AUTHENTICATION,  # noqa: SLF001 - a public code's name
        KafkaError.SASL_AUTHENTICATION_FAILED,
    }
)


class Client:
    """One admin client, held for as long as anything is outstanding.

    Futures fail when their client is garbage collected, so nobody else holds one.
    """

    def __init__(self, bootstrap_servers: str, properties: Mapping[str, str]) -> None:
        refused = refusals(properties)
        if refused:
            raise InvalidSettings("; ".join(refused))
        self._bootstrap_servers = bootstrap_servers
        self._last_error: KafkaError | None = None
        self._last_seen: AccessFailure | None = None
        self._properties = {**properties, "bootstrap.servers": bootstrap_servers}
        configuration = {
            "client.id": "sluiceway-gateway",
            # A broker that is back shall be seen soon.
            "reconnect.backoff.max.ms": 1_000,
            "socket.connection.setup.timeout.ms": 5_000,
            **self._properties,
            # What matters comes back as errors; librdkafka's own lines are not structured.
            "log_level": 0,
            "error_cb": self._note,
        }
        self.admin = _made(configuration, "SLUICEWAY_KAFKA_PROPERTIES")

    def answer(self, future: "Future[Any]", timeout_s: float) -> Any:
        """Wait for one answer; where Kafka refuses, its Rejection is the answer."""
        try:
            return future.result(timeout=timeout_s + _GRACE_S)
        except KafkaException as error:
            return rejection(error.args[0])
        except TimeoutError:
            return Rejection(cause=Cause.UNAVAILABLE, message="the Kafka client does not answer")

    def answers(self, futures: Mapping[Any, "Future[Any]"], timeout_s: float) -> dict[Any, Any]:
        """Wait for many answers of one request.

        Raises KafkaUnavailable if not one of them is more than "not now".
        """
        answers = {key: self.answer(future, timeout_s) for key, future in futures.items()}
        lacking = [each for each in answers.values() if _is_unavailable(each)]
        if lacking and len(lacking) == len(answers):
            raise self.unavailable(lacking[0].message)
        self.admin.poll(0)
        if not lacking:
            self._last_error = self._last_seen = None
        return answers

    def unavailable(self, words: str) -> KafkaUnavailable:
        """Say that Kafka does not answer and, where it can be found out, why and what to do."""
        # While a look lasts, a slow broker may have refused the user.
        lockout = self._refusal() or self._misfit() or self._refusal()
        last = self._last_error
        if lockout is None:
            cause = (
                f"does not answer ({words if last is None else last.str()}); see that it runs and "
                "that the gateway can reach it"
            )
        else:
            heard = f" (Kafka says: {last.str()})" if _is_refusal(last) else ""
            cause = f"does not let the gateway in: {lockout.words}{heard}"
        return KafkaUnavailable(
            f"Kafka at {self._bootstrap_servers} {cause}. Nothing was lost: send the request again "
            "when that is done.",
            lockout,
        )

    def _refusal(self) -> AccessFailure | None:
        self.admin.poll(0)
        if not _is_refusal(self._last_error):
            return None
        # Its own words hold how long it took.
        return AccessFailure(misfit=Misfit.CREDENTIALS, words=_WRONG_CREDENTIALS)

    def _misfit(self) -> AccessFailure | None:
        try:
            found = diagnosis(self._properties)
        except TimeoutError:
            # Nothing speaks against what was seen before, until somebody answers.
            return self._last_seen
        self._last_seen = None if found is None else _lockout(found)
        return self._last_seen

    def _note(self, error: KafkaError) -> None:
        # "All brokers are down" comes after each real reason and says nothing of its own.
        if error.code() != KafkaError._ALL_BROKERS_DOWN:  # noqa: SLF001 - a public code's name
            self._last_error = error


def check_for_clients(properties: Mapping[str, str]) -> None:
    """Raise InvalidSettings where librdkafka refuses properties that clients are to be given."""
    stand_ins = {"sasl.mechanism": "PLAIN", "sasl.username": "-", "sasl.password": "-"}
    # Clients may bring what these stand for. Without a server nothing is connected to.
    given = {name: value for name, value in properties.items() if name != "bootstrap.servers"}
    _made({**stand_ins, **given, "log_level": 0}, "SLUICEWAY_KAFKA_CLIENT_PROPERTIES or _LISTENERS")


def _made(configuration: Mapping[str, Any], source: str) -> AdminClient:
    try:
        return AdminClient(dict(configuration))
    except KafkaException as error:
        raise InvalidSettings(
            f"librdkafka refuses what {source} hold: {error.args[0].str()}"
        ) from error


def outcomes(answers: Mapping[Any, Any]) -> dict[Any, Rejection | None]:
    """Keep of each answer only whether and why Kafka refused."""
    return {k: v if isinstance(v, Rejection) else None for k, v in answers.items()}


def accepted(answers: Mapping[Any, Any]) -> dict[Any, Any]:
    """Keep the answers that are no rejections."""
    return {k: v for k, v in answers.items() if not isinstance(v, Rejection)}


def rejected(answers: Mapping[Any, Any], *, but: Iterable[Cause] = ()) -> dict[Any, Rejection]:
    """Keep the rejections, those for the causes in `but` left out."""
    return {
        k: v for k, v in answers.items() if isinstance(v, Rejection) and v.cause not in tuple(but)
    }


def _lockout(found: Finding) -> AccessFailure:
    return AccessFailure(misfit=Misfit(found.problem), words=f"{found.message} ({_WHENCE})")


def _is_refusal(error: KafkaError | None) -> TypeGuard[KafkaError]:
    return error is not None and error.code() in _REFUSED


def _is_unavailable(answer: object) -> bool:
    return isinstance(answer, Rejection) and answer.cause is Cause.UNAVAILABLE
