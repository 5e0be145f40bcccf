"""How far a group has come towards what it is waited for, as the gateway tells it."""

from dataclasses import dataclass

from sluiceway.answer import Answer

__all__ = ["Lack", "Passage"]


@dataclass(frozen=True, kw_only=True)
class Lack:
    """Where a group is not there yet; `index` is that of a broadcast group's member."""

    index: int | None
    partition: int
    committed: int | None
    wanted: int


@dataclass(frozen=True, kw_only=True)
class Passage:
    """Whether a group has committed as far as was asked; `lacking` counts what is missing."""

    passed: bool
    known: bool
    lacking: int
    missing: tuple[Lack, ...]

    @classmethod
    def parse(cls, answer: object) -> "Passage":
        """Read the JSON of the answer."""
        read = Answer(answer, "passed")
        return cls(
            passed=read.flag("passed"),
            known=read.flag("known"),
            lacking=read.number("lacking"),
            missing=tuple(
                Lack(
                    index=each.optional(each.number, "index"),
                    partition=each.number("partition"),
                    committed=each.optional(each.number, "committed"),
                    wanted=each.number("wanted"),
                )
                for each in read.items("missing")
            ),
        )
