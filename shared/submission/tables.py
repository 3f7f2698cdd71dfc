"""The table that a new batch asks for, as its manifest keeps it. Pure."""

from typing import Any

import msgspec

from shared.dataset.dataset import Dataset
from shared.errors import InvalidInputError
from shared.input_places import InputPlaces
from shared.table.asking import asking_text
from shared.table.output import Output, wanted_table


def table_fields(
    tenant: str,
    output: Output | None,
    dataset: object,
    *,
    endpoint: str,
    places: InputPlaces | None,
) -> dict[str, Any]:
    """Fields of the manifest; none if no table is wanted.

    `dataset` is the input, if it is one, and `places` are those that tenants may have tables in.
    Raises InvalidInputError that names the field.
    """
    found = dataset if isinstance(dataset, Dataset) else None
    carry = [] if found is None else found.carry
    if output is None:
        if carry:
            raise InvalidInputError(
                "Invalid 'input.carry': there is no 'output' for these columns. Add one, as "
                '{"format": "parquet"}.',
                param="input.carry",
                code="invalid_value",
            )
        return {}
    wanted = wanted_table(
        output,
        endpoint=endpoint,
        carry=carry,
        template=None if found is None else found.template,
        places=() if places is None else places.of(tenant),
    )
    fields = {"output": msgspec.json.encode(wanted).decode()}
    if output.retries and wanted.schema is not None:
        fields["asking"] = asking_text(output.retries, wanted.schema)
    return fields
