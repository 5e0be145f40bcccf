"""The token in use: `GET /v1/token`."""

from datetime import timedelta

import pytest

from gateways import Rig, code

PATH = "/v1/token"


@pytest.mark.long
def test_a_token_describes_itself_without_its_secret(rig: Rig) -> None:
    limited = rig.token(
        "read", "manage:sales.", label="Ana's laptop", expires_in=timedelta(hours=1)
    )
    response = rig.http.get(PATH, headers=limited)
    id_, secret = limited["Authorization"].split("_")[1:]
    assert response.json() == {
        "id": id_,
        "name": "Ana's laptop",
        "scopes": ["read", "manage:sales."],
        "expires_at": "2030-01-01T01:00:00.000Z",
    }
    assert secret not in response.text
    lasting = rig.http.get(PATH, headers=rig.token("admin", label="ops")).json()
    assert (lasting["name"], lasting["scopes"], lasting["expires_at"]) == ("ops", ["admin"], None)


def test_without_tokens_the_own_machine_has_all_scopes(rig: Rig) -> None:
    token = rig.http.get(PATH).json()
    assert token == {"id": None, "name": None, "scopes": ["admin"], "expires_at": None}


@pytest.mark.parametrize("end", ["expires", "is revoked"])
def test_a_token_that_ended_is_refused(rig: Rig, end: str) -> None:
    header = rig.token("read", expires_in=timedelta(hours=1))
    assert rig.http.get(PATH, headers=header).status_code == 200
    if end == "expires":
        rig.clock.advance(timedelta(hours=1))
    else:
        rig.tokens.revoke(header["Authorization"].split("_")[1])
    response = rig.http.get(PATH, headers=header)
    assert (response.status_code, code(response)) == (401, "unauthenticated")
