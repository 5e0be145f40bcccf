"""Shared request parameters: rules and documentation."""

import base64
import hashlib
from collections import Counter
from typing import Annotated

from fastapi import Depends, Header, Path, Query
from fastapi import Request as HttpRequest
from fastapi.dependencies.models import Dependant
from pydantic import AfterValidator, Field

from sluiceway_gateway.api.models import GroupName
from sluiceway_gateway.core.auth.model import Principal, check_label
from sluiceway_gateway.core.db.idempotency import Request
from sluiceway_gateway.core.errors import InvalidRequest, Violation
from sluiceway_gateway.core.names import NAME_LENGTH, NAME_PATTERN, check_name
from sluiceway_gateway.core.preconditions import Precondition

Name = Annotated[
    str,
    Path(description="The channel's name"),
    AfterValidator(check_name),
    Field(json_schema_extra={"pattern": NAME_PATTERN, "minLength": 1, "maxLength": NAME_LENGTH}),
]

NO_CURSOR = "not a cursor of this list; use next_cursor of the previous page"

_TAGS = "Entity tags of responses, or *"


async def precondition_of(
    if_match: Annotated[str | None, Header(description=_TAGS)] = None,
    if_none_match: Annotated[str | None, Header(description=_TAGS)] = None,
) -> Precondition:
    """Return the request's precondition."""
    return Precondition.of(if_match=if_match, if_none_match=if_none_match)


Conditions = Annotated[Precondition, Depends(precondition_of)]


async def features_of(
    sluiceway_features: Annotated[
        str, Header(description="Features of the client, such as exactly-once, separated by commas")
    ] = "",
) -> frozenset[str]:
    """Return the names of the client's features."""
    return frozenset(feature.strip() for feature in sluiceway_features.split(","))


Features = Annotated[frozenset[str], Depends(features_of)]

MAX_WAIT_S = 60
Label = Annotated[str, AfterValidator(check_label)]
"""A token's label, or `*`."""
LABEL_TEXT = "Label of tokens; `*` shares it with every label"
Reason = Annotated[str | None, Field(max_length=1000, description="For the audit trail")]
Wait = Annotated[
    float,
    Query(
        ge=0,
        le=MAX_WAIT_S,
        allow_inf_nan=False,
        description="Seconds to wait for a change, if If-None-Match names the current state",
    ),
]

IdempotencyKey = Annotated[
    str | None,
    Header(
        description="A repeat with the same key gets the same response, for a day",
        pattern=r"^[!-~]{1,200}$",
    ),
]


def request_of(
    key: str | None, principal: Principal, *content: object, precondition: Precondition
) -> Request | None:
    """Return the idempotent request of `key`; its digest covers `content`.

    Keys belong to the token's label, so that a repeat may have the label's next token.
    """
    if key is None:
        return None
    text = repr((content, precondition.if_match, precondition.if_none_match))
    digest = hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()
    owner = principal.id if principal.subject is None else f"label:{principal.subject}"
    return Request(key=key, principal=owner, digest=digest)


def cursor_after(name: str) -> str:
    """Return the cursor after this name."""
    return encoded_cursor(f"1:{name}")


def name_before(cursor: str | None) -> str:
    """Return the name before the cursor. Raises InvalidRequest for an invalid cursor."""
    if cursor is None:
        return ""
    try:
        # base64 errors are ValueErrors too.
        name = check_name(decoded_cursor(cursor).removeprefix("1:"))
    except ValueError:
        name = ""
    if not name or cursor != cursor_after(name):
        raise InvalidRequest.at("query:cursor", NO_CURSOR)
    return name


def encoded_cursor(text: str) -> str:
    """Return the cursor with this text."""
    return base64.urlsafe_b64encode(text.encode()).decode("ascii").rstrip("=")


def decoded_cursor(cursor: str) -> str:
    """Return a cursor's text. Raises ValueError for one that is not base64."""
    padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
    return base64.b64decode(padded, b"-_", validate=True).decode()


InGroup = Annotated[GroupName, Path(description="The group's name")]


def query_names(dependant: Dependant) -> frozenset[str]:
    """Return the query parameters that a route and its dependencies take."""
    own = frozenset(field.alias for field in dependant.query_params)
    return own.union(*map(query_names, dependant.dependencies))


def check_query(request: HttpRequest, names: frozenset[str]) -> None:
    """Refuse query parameters with other names, and those given twice."""
    if not request.scope["query_string"]:
        return
    times = Counter(name for name, _ in request.query_params.multi_items())
    taken = ", ".join(sorted(names)) or "none"
    violations = []
    for name, count in times.items():
        if name not in names:
            message = f"unknown parameter; this path takes {taken}"
            violations.append(Violation(pointer=f"query:{name[:100]}", message=message))
        elif count > 1:
            violations.append(Violation(pointer=f"query:{name}", message="given more than once"))
    if violations:
        raise InvalidRequest.malformed(violations)
