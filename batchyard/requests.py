"""What is asked of each row, and which columns its answer has, as the gateway takes both. Pure."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError
from pydantic.json_schema import GenerateJsonSchema

from batchyard.options import Options, Schema
from shared.errors import InvalidInputError
from shared.openai.endpoints import ENDPOINTS
from shared.table.output import Column, Output, wanted_table

Template = str | Mapping[str, Any] | Sequence[Mapping[str, Any]]

CHAT = "/v1/chat/completions"
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_-]+")
_MAX_NAME = 64
#: The rows themselves stand beside the answers, so their order is their name.
_LEFT_OUT = "custom_id"


def endpoint_of(options: Options) -> str:
    """The endpoint that rows are asked at. Raises InvalidInputError."""
    found = options.get("endpoint", CHAT)
    if found not in ENDPOINTS:
        raise InvalidInputError(
            f"There is no endpoint '{found}'. There are: {', '.join(ENDPOINTS)}"
        )
    return found


def body_of(template: Template, options: Options) -> dict[str, Any]:
    """The body of each request, in whose strings `{{ column }}` stands. Raises InvalidInputError.

    A text is the user's message or the input, a list is the messages, and a mapping is the body.
    """
    endpoint = endpoint_of(options)
    body: dict[str, Any] = {**_content(template, endpoint), **options.get("body", {})}
    if model := options.get("model"):
        body["model"] = model
    if "model" not in body:
        raise InvalidInputError("Name a model: model='…'. `batchyard models` lists them.")
    schema = schema_of(options.get("schema"))
    return body if schema is None else {**_form(endpoint, schema), **body}


def output_of(body: Mapping[str, Any], options: Options, answers_format: str) -> dict[str, Any]:
    """The table that a batch is to make of its answers. Raises InvalidInputError."""
    schema, retries = schema_of(options.get("schema")), options.get("retries", 0)
    output = {"format": answers_format, "columns": columns_of(body, options)}
    output |= {} if schema is None else {"schema": schema}
    return output | ({"retries": retries} if retries else {})


def error_column(columns: Mapping[str, str]) -> str | None:
    """The column that says of a row that it has an error; None without one."""
    found = (name for name, source in columns.items() if source in ("error_code", "error"))
    return next(found, None)


def columns_of(body: Mapping[str, Any], options: Options) -> dict[str, str]:
    """The answers' columns: what each has, by its name. Raises InvalidInputError."""
    columns = options.get("columns")
    given: dict[str, Any] = {"schema": schema_of(options.get("schema"))}
    given["retries"] = options.get("retries", 0)
    if isinstance(columns, str):
        columns = [columns]
    if columns is not None:
        given["columns"] = dict(columns) if isinstance(columns, Mapping) else list(columns)
    try:
        output = Output.model_validate(given)
    except ValidationError as error:
        [first, *_] = error.errors(include_url=False, include_input=False)
        place = ".".join(str(one) for one in first["loc"])
        raise InvalidInputError(f"Invalid '{place}': {first['msg']}.") from error
    found = wanted_table(output, endpoint=endpoint_of(options), template=body).columns
    prefix = options.get("prefix", "")
    made = {prefix + one.name: one.source for one in found if _is_wanted(one, columns)}
    # Without a schema, the batch counts the rows that failed.
    is_judged = options.get("schema") is not None and options.get("check", False)
    if is_judged and error_column(made) is None:
        raise InvalidInputError(
            "check=True with a schema needs the column 'error' or 'error_code'."
        )
    return made


def schema_of(schema: Schema | None) -> dict[str, Any] | None:
    """The JSON schema, or that of the pydantic model without room for more fields."""
    if schema is None or isinstance(schema, Mapping):
        return None if schema is None else dict(schema)
    return schema.model_json_schema(schema_generator=_Closed)


class _Closed(GenerateJsonSchema):
    """pydantic ignores what a model does not name, and so leaves its schema open.

    An engine that follows an open schema writes more fields, until the answer is cut off.
    """

    def model_schema(self, schema: Any) -> dict[str, Any]:
        """Closed, unless the model says that it takes more."""
        made = super().model_schema(schema)
        return {"additionalProperties": False, **made} if "properties" in made else made


def _is_wanted(column: Column, asked: object) -> bool:
    return asked is not None or column.source != _LEFT_OUT


def _content(template: Template, endpoint: str) -> dict[str, Any]:
    if isinstance(template, Mapping):
        return dict(template)
    names = ENDPOINTS[endpoint].forms[0]
    if len(names) > 1:
        raise InvalidInputError(f"A request of {endpoint} has several texts: give its whole body.")
    if not isinstance(template, str):
        return {names[0]: [dict(one) for one in template]}
    is_chat = names[0] == "messages"
    return {names[0]: [{"role": "user", "content": template}] if is_chat else template}


def _form(endpoint: str, schema: dict[str, Any]) -> dict[str, Any]:
    """The fields by which the engine writes nothing else than the schema allows."""
    title = _NOT_IN_A_NAME.sub("_", str(schema.get("title", "")))[:_MAX_NAME]
    form = {"name": title or "answer", "schema": schema, "strict": True}
    match endpoint:
        case "/v1/chat/completions":
            return {"response_format": {"type": "json_schema", "json_schema": form}}
        case "/v1/responses":
            return {"text": {"format": {"type": "json_schema", **form}}}
        case _:
            return {}
