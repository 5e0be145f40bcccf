"""Entries of the audit trail, with changed fields. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated

from pydantic import Field

Scalar = str | int | bool | None

MAX_FIELDS = 20
"""Maximum listed fields of an entry; the others are counted."""
# Characters of a value; the rest is cut off.
_MAX_TEXT = 200


class AuditedAction(StrEnum):
    """An action that changes a channel, or what its readers and writers see."""

    CREATE = "create"
    UPDATE = "update"
    CLOSE = "close"
    DELETE = "delete"
    RESET_OFFSETS = "reset_offsets"
    RESIZE_GROUP = "resize_group"
    DISMISS_ENDPOINT = "dismiss_endpoint"
    ABORT_BATCH = "abort_batch"
    """Of somebody else; a writer's own batches are in the list of commits."""
    REPAIR_LEDGER = "repair_ledger"
    REFUSE_COMMIT = "refuse_commit"
    """Of a batch whose manifest lists offsets of others."""
    WRITE_MESSAGES = "write_messages"
    """By hand."""
    CLAIM_OWNER = "claim_owner"
    """Of a group or a writer of batches that had no owner."""
    TRANSFER_OWNER = "transfer_owner"
    FOREIGN_USE = "foreign_use"
    """Of a group or a writer of batches by another label than the owner's."""


@dataclass(frozen=True, kw_only=True)
class FieldChange:
    """A field before and after; null where it has no value."""

    field: str
    old: Scalar
    new: Scalar


@dataclass(frozen=True, kw_only=True)
class AuditEntry:
    """A change of a channel."""

    number: Annotated[int, Field(description="Increases with each change")]
    uid: Annotated[str, Field(description="Of the channel, which may be deleted")]
    at: datetime
    by: Annotated[
        str,
        Field(
            description="Label of the token; `loopback` without tokens, `gateway` for idle channels"
        ),
    ]
    token_id: Annotated[str | None, Field(description="Id of the token")]
    action: AuditedAction
    target: Annotated[
        str | None, Field(description="Group, endpoint id, batch key, or writer of batches")
    ]
    reason: Annotated[str | None, Field(description="As given with the request")]
    fields: Annotated[tuple[FieldChange, ...], Field(description=f"At most {MAX_FIELDS}")]
    omitted: Annotated[int, Field(description="Further changed fields")]


def changes(old: Mapping[str, Scalar], new: Mapping[str, Scalar]) -> list[FieldChange]:
    """Return the fields that differ, with long texts cut off."""
    return [
        FieldChange(field=_short(name), old=_cut(old.get(name)), new=_cut(new.get(name)))
        for name in dict.fromkeys((*old, *new))
        if old.get(name) != new.get(name)
    ]


def _cut(value: Scalar) -> Scalar:
    return _short(value) if isinstance(value, str) else value


def _short(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 1]}…"
