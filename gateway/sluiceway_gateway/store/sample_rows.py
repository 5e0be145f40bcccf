"""How a sample lies in its row."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from sqlalchemy import Row

from sluiceway_gateway.status.lag import Outline, Pace, Sample, Track, outline
from sluiceway_gateway.status.progress import Progress

_PROGRESS = {str(each): each for each in Progress}


@dataclass(frozen=True, kw_only=True)
class KeptSample:
    """A sample as it is kept, with what the status shows by it."""

    number: int
    """Counts the samples of the channel."""
    sample: Sample
    counted: str = ""
    """Tells two states of the endpoints' counters apart."""
    paces: Mapping[str, Pace] = field(default_factory=dict)
    """By track."""
    write_rate: float | None = None


def sample_of(row: Row[Any]) -> KeptSample:
    """Return the sample of a row of `samples`."""
    document = row.document
    return KeptSample(
        number=row.number,
        sample=Sample(
            at=row.at,
            starts=document["starts"],
            ends=document["ends"],
            tracks={key: Track(**each) for key, each in document["tracks"].items()},
        ),
        counted=document["counted"],
        paces={key: _pace_of(each) for key, each in document["paces"].items()},
        write_rate=document["outline"]["write_rate"],
    )


def values_of(channel_uid: str, kept: KeptSample) -> dict[str, Any]:
    """Return the columns of a sample."""
    sample = kept.sample
    document = {
        "starts": sample.starts,
        "ends": sample.ends,
        # Not by asdict, which copies every number.
        "tracks": {
            key: {"position": t.position, "committed": t.committed, "holder": t.holder}
            for key, t in sample.tracks.items()
        },
        "counted": kept.counted,
        "paces": {key: vars(each) for key, each in kept.paces.items()},
        "outline": asdict(outline(kept.paces.values(), kept.write_rate)),
    }
    return {
        "channel_uid": channel_uid,
        "number": kept.number,
        "at": sample.at,
        "document": document,
    }


def outline_of(document: Mapping[str, Any]) -> Outline:
    """Return the line that a document has."""
    progress = document["progress"]
    return Outline(
        lag_messages=document["lag_messages"],
        behind_since=document["behind_since"],
        progress=progress and Progress(progress),
        write_rate=document["write_rate"],
    )


def _pace_of(document: Mapping[str, Any]) -> Pace:
    return Pace(
        lags=document["lags"],
        since=document["since"],
        progress=[_PROGRESS.get(each) for each in document["progress"]],
        lag_messages=document["lag_messages"],
        behind_since=document["behind_since"],
        read_rate=document["read_rate"],
        trend=document["trend"],
        drain_s=document["drain_s"],
    )
