"""Entries of the audit trail, with changed fields. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

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
    """An action that took place."""

    channel: str
    """The channel's name."""
    channel_uid: str
    at: datetime
    by: str
    """Label of the token; `loopback` without tokens, `gateway` for idle channels."""
    token_id: str | None
    action: AuditedAction
    target: str | None
    """Name of the group or the writer of batches, id of the endpoint, or key of the batch."""
    reason: str | None
    """As given with the request."""
    fields: tuple[FieldChange, ...]
    omitted: int
    """Changed fields beyond `MAX_FIELDS`."""
    number: int
    """Increases with each entry of any channel."""


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
