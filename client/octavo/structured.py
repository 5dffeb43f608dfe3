"""The form that an output must have, as users write it. Judges no grammar: the service does."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol, TypeAlias, runtime_checkable

from octavo.errors import invalid_field
from octavo.v1 import inference_pb2


@runtime_checkable
class HasJsonSchema(Protocol):
    """A class that knows its JSON Schema, such as a pydantic model."""

    @classmethod
    def model_json_schema(cls) -> dict[str, Any]:
        """The schema."""


SchemaInput: TypeAlias = str | bool | Mapping[str, Any] | type[HasJsonSchema]


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutput:
    """What form an output must have: exactly one of the first six.

    json_schema: a JSON value that this schema allows; a dict, its text, or a class that knows its
        schema, such as a pydantic model.
    json_object: any JSON object.
    regex: a text that this regular expression matches as a whole.
    lark: a text of this grammar, in Lark's syntax.
    gbnf: a text of this grammar, in GBNF.
    choice: one of these texts.
    after_reasoning: leaves the model's reasoning free; the form begins behind it.
    """

    json_schema: SchemaInput | None = None
    json_object: bool | None = None
    regex: str | None = None
    lark: str | None = None
    gbnf: str | None = None
    choice: Sequence[str] | None = None
    after_reasoning: bool | None = None


# A dict is a JSON Schema, a class one that knows its schema.
StructuredInput: TypeAlias = StructuredOutput | Mapping[str, Any] | type[HasJsonSchema]

_KINDS = tuple(field.name for field in fields(StructuredOutput) if field.name != "after_reasoning")


def structured_message(value: StructuredInput) -> inference_pb2.StructuredOutput:
    """The message the service reads. Raises InvalidRequest."""
    wanted = value if isinstance(value, StructuredOutput) else StructuredOutput(json_schema=value)
    given = [name for name in _KINDS if getattr(wanted, name) is not None]
    if len(given) != 1:
        rule = f"give exactly one of {', '.join(_KINDS)}; got {', '.join(given) or 'none'}"
        raise invalid_field("structured_output", rule)
    [kind] = given
    content = getattr(wanted, kind)
    message = inference_pb2.StructuredOutput(after_reasoning=wanted.after_reasoning)
    try:
        if kind == "json_schema":
            message.json_schema = _schema_text(content)
        elif kind == "choice":
            message.choice.texts.extend([content] if isinstance(content, str) else content)
            message.choice.SetInParent()  # an empty list is a choice too: the service refuses it
        else:
            setattr(message, kind, content)
    except (TypeError, ValueError) as error:
        rule = f"cannot be {content!r:.200} ({error})"
        raise invalid_field(f"structured_output.{kind}", rule) from error
    return message


def _schema_text(schema: SchemaInput) -> str:
    if isinstance(schema, str):
        return schema
    if isinstance(schema, type):
        if not issubclass(schema, HasJsonSchema):
            raise TypeError(f"{schema.__name__} has no model_json_schema()")
        schema = schema.model_json_schema()
    if isinstance(schema, Mapping | bool):
        return json.dumps(schema, ensure_ascii=False, allow_nan=False)
    raise TypeError("must be a dict, a text or a class")
