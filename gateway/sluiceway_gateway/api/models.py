"""Parts of request models that features share."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from sluiceway_gateway.core.names import GROUP_LENGTH, check_group

INT64_MAX = 2**63 - 1

Uid = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$", examples=["0" * 32])]


class RequestModel(BaseModel):
    """Base of request models; refuses unknown fields and other types."""

    model_config = ConfigDict(extra="forbid", strict=True)


GroupName = Annotated[
    str, AfterValidator(check_group), Field(min_length=1, max_length=GROUP_LENGTH)
]
Count = Annotated[int, Field(ge=0, le=INT64_MAX)]
Number = Annotated[int, Field(ge=1, le=INT64_MAX)]
"""Of things that are numbered from 1: instances, generations, commits."""
PartitionText = Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,5})$")]
Ends = Annotated[
    dict[PartitionText, Count],
    Field(max_length=100_000, description="By partition, the offset after the last record"),
]
