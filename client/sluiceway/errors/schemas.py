"""What is wrong with a schema."""

from sluiceway.errors.root import SluicewayError


class SchemaError(SluicewayError):
    """A schema, or what it was made from, cannot be used."""

    code = "schema_error"


class InvalidSchema(SchemaError):
    """It is not a schema, or not one that a channel may have; the message says where and why."""

    code = "invalid_schema"


class SchemaMismatch(SchemaError):
    """It is a schema, but not the channel's."""

    code = "schema_mismatch"


class UnsupportedType(SchemaError):
    """The field at `path` has a type that a channel cannot carry."""

    code = "unsupported_type"
    tells_no_values = True

    def __init__(self, *, path: str, type_name: str, hint: str = "") -> None:
        where = f"the field {path!r}" if path else "the schema"
        advice = f"; {hint}" if hint else ""
        super().__init__(f"{where} has the type {type_name}, which no channel can carry{advice}")
        self.path, self.type_name = path, type_name
