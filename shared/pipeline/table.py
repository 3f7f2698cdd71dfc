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
    shapes, vectors = _known(declaration)
    sources = {column.source for column in wanted}
    return RowsTable(
        output.format,
        wanted,
        output.destination,
        {name: shape for name, shape in shapes.items() if name in sources},
        sorted(vectors & sources),
    )


def _known(declaration: Declaration) -> tuple[dict[str, Shape], set[str]]:
    """The shapes of the last columns of which they are known, and those that hold vectors.

    A column that was dropped may come again, as something else.
    """
    shapes, vectors = {_ID: Shape("text")}, set[str]()
    for stage in declaration.stages:
        if stage.call is None:
            continue
        if stage.call.carry is not None:
            kept = {_ID, *stage.call.carry}
            shapes = {name: shape for name, shape in shapes.items() if name in kept}
            vectors &= kept
        new = new_shapes(stage.call)
        vectors = vectors - new.keys()
        if has_vectors(stage.call):
            column = answer_column(stage.call)
            shapes.pop(column, None)
            vectors.add(column)
        shapes |= new
    return shapes, vectors
