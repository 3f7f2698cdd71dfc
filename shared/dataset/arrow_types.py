"""Arrow's types that hold others. Pure."""

from collections.abc import Callable

import pyarrow as pa


def with_leaves(type_: pa.DataType, of_leaf: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """The type with other types in it, at any depth of structs and lists."""
    if pa.types.is_struct(type_):
        fields = [type_.field(number) for number in range(type_.num_fields)]
        return pa.struct([field.with_type(with_leaves(field.type, of_leaf)) for field in fields])
    if pa.types.is_list(type_):
        return pa.list_(type_.value_field.with_type(with_leaves(type_.value_type, of_leaf)))
    return of_leaf(type_)
