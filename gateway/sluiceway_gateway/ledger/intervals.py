"""Intervals of offsets: manifests, runs, and what is visible below a bound. Pure."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from sluiceway_gateway.errors import InvalidManifest


class Interval(NamedTuple):
    """The offsets from `first` up to, but without, `end`."""

    first: int
    end: int


Manifest = Mapping[int, tuple[Interval, ...]]
"""By partition, the offsets that a batch wrote: sorted, without overlaps."""
Runs = Mapping[int, Sequence[Interval]]
"""By partition, committed offsets: sorted, and apart from each other."""


def manifest_of(raw: Mapping[int, Iterable[Sequence[int]]]) -> Manifest:
    """Return pairs of numbers as a manifest, checked.

    Raises InvalidManifest unless all intervals are non-empty and go upwards in their partition.
    """
    manifest: dict[int, tuple[Interval, ...]] = {}
    for partition in sorted(raw):
        pairs = [tuple(each) for each in raw[partition]]
        if any(len(each) != 2 for each in pairs):
            raise InvalidManifest(
                f"The manifest's partition {partition} holds an interval that is not "
                "[first, end]. Give each as two offsets."
            )
        manifest[partition] = tuple(Interval(*each) for each in pairs)
    require_ordered(manifest)
    return manifest


def require_ordered(manifest: Manifest) -> None:
    """Raise InvalidManifest unless intervals are non-empty, sorted and without overlaps."""
    for partition, intervals in manifest.items():
        for each in intervals:
            if not 0 <= each.first < each.end:
                raise InvalidManifest(
                    f"The interval [{each.first}, {each.end}) of partition {partition} holds no "
                    "offsets. An interval goes from its first offset to the one after its last."
                )
        for before, after in pairwise(intervals):
            if after.first < before.end:
                raise InvalidManifest(
                    f"The intervals [{before.first}, {before.end}) and [{after.first}, "
                    f"{after.end}) of partition {partition} overlap or are not sorted. List each "
                    "offset once, and each task by one attempt only."
                )


def digest_of(manifest: Manifest) -> str:
    """Return the hex SHA-256 of the manifest as JSON: by partition number, without spaces.

    Equal manifests have equal JSON: `{"0":[[1,2]],"1":[[5,9]]}`.
    """
    text = json.dumps(
        {str(partition): manifest[partition] for partition in sorted(manifest)},
        separators=(",", ":"),
    )
    return hashlib.sha256(text.encode()).hexdigest()


def merge_runs(runs: Iterable[Interval], added: Iterable[Interval] = ()) -> tuple[Interval, ...]:
    """Return all of them in order; those that touch become one."""
    merged: list[Interval] = []
    for each in sorted((*runs, *added)):
        if merged and each.first <= merged[-1].end:
            merged[-1] = Interval(merged[-1].first, max(merged[-1].end, each.end))
        else:
            merged.append(each)
    return tuple(merged)


def first_overlap(runs: Sequence[Interval], added: Sequence[Interval]) -> Interval | None:
    """Return the first of `added` that shares an offset with a run; both are sorted."""
    at = 0
    for each in added:
        while at < len(runs) and runs[at].end <= each.first:
            at += 1
        if at < len(runs) and runs[at].first < each.end:
            return each
    return None


def clip(runs: Iterable[Interval], log_start: int) -> tuple[Interval, ...]:
    """Return what of the runs is at `log_start` or above it."""
    return tuple(
        Interval(max(each.first, log_start), each.end) for each in runs if each.end > log_start
    )


def visible_below(runs: Iterable[Interval], stable: int, start: int = 0) -> tuple[Interval, ...]:
    """Return what of the runs is in `[start, stable)`: what a reader may see."""
    return tuple(
        Interval(each.first, min(each.end, stable))
        for each in clip(runs, start)
        if each.first < stable
    )


class RunSlice(NamedTuple):
    """A part of an answer: the runs, and by partition where the next part begins."""

    runs: Mapping[int, tuple[Interval, ...]]
    truncated: Mapping[int, int]


def slice_runs(
    runs: Runs, stable: Mapping[int, int], starts: Mapping[int, int], limit: int
) -> RunSlice:
    """Return up to `limit` visible runs, from `starts` on, and where to go on.

    Further slices of one answer are asked for with the same `stable`.
    """
    found: dict[int, tuple[Interval, ...]] = {}
    truncated: dict[int, int] = {}
    for partition, start in sorted(starts.items()):
        visible = visible_below(runs.get(partition, ()), stable.get(partition, 0), start)
        found[partition] = visible[:limit]
        limit -= len(found[partition])
        if len(found[partition]) < len(visible):
            truncated[partition] = visible[len(found[partition])].first
    return RunSlice(found, truncated)
