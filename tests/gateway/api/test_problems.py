import re

from sluiceway_gateway.core import errors
from sluiceway_gateway.core.errors import SluicewayGatewayError


def every(kind: type[SluicewayGatewayError]) -> list[type[SluicewayGatewayError]]:
    return [kind, *(error for child in kind.__subclasses__() for error in every(child))]


ALL = [error for error in every(SluicewayGatewayError) if error.__module__ == errors.__name__]


def test_the_documented_error_tree_is_the_real_one() -> None:
    drawn = (errors.__doc__ or "").split("`code`")[0]
    names = set(re.findall(r"\w+", drawn))
    assert {error.__name__ for error in ALL} <= names


def test_each_code_has_one_meaning() -> None:
    startup = errors.StartupRefused
    codes = [error.code for error in ALL if not issubclass(error, startup)]
    assert len(codes) == len(set(codes))


def test_every_error_of_a_request_has_its_advice() -> None:
    for kind in ALL:
        if not issubclass(kind, (errors.StartupRefused, errors.RegistryError)):
            assert vars(kind)["advice"], kind


def test_every_error_of_a_request_has_its_status() -> None:
    for kind in ALL:
        unforeseen = kind is SluicewayGatewayError or issubclass(kind, errors.StartupRefused)
        assert (kind.status == 500) == unforeseen, kind
