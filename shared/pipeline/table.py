"""The table that a pipeline makes of its output: which columns it has, and of what types. Pure."""

from collections.abc import Sequence

from shared.pipeline.answers import answer_column, has_vectors, new_shapes
from shared.pipeline.declaration import Declaration
from shared.table.answer_shape import Shape
from shared.table.output import Column, RowsTable, named, require_columns, require_own

_ID = "custom_id"


def rows_table(
    declaration: Declaration, columns: Sequence[str], places: Sequence[str]
) -> RowsTable | None:
    """The table that the declaration asks for, of rows with these columns; None for none.

    `places` are the tenant's own. Raises InvalidInputError that names the field.
    """
    output = declaration.output
    if output is None:
        return None
    require_own(output.destination, places)
    wanted = named(output.columns) or [Column(one, one) for one in (_ID, *columns)]
    require_columns(wanted, {_ID, *columns})
    shapes, vectors = {_ID: Shape("text")}, set[str]()
    for call in (stage.call for stage in declaration.stages if stage.call is not None):
        shapes |= new_shapes(call)
        vectors |= {answer_column(call)} if has_vectors(call) else set()
    sources = {column.source for column in wanted}
    return RowsTable(
        output.format,
        wanted,
        output.destination,
        {name: shape for name, shape in shapes.items() if name in sources},
        sorted(vectors & sources),
    )
