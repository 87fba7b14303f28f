"""What the graph of a SavedModel may do when it comes in a file that is shared, as models are.

A SavedModel is a program: its operations can read and write files, and some of its functions run
as soon as it is loaded. An encoder only computes, so a graph that does anything else is no encoder.
"""

from collections.abc import Iterable, Iterator

from google.protobuf.message import DecodeError
from tensorflow.core.framework import attr_value_pb2, node_def_pb2, types_pb2
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2
from tensorflow.python.framework import op_def_registry

from kzoo.errors import KzooError

# Operations with a state that is a variable, a random generator, or that of the functions they call
# (which are looked at themselves). Whatever else has a state, TensorFlow says so, is not allowed.
_WITH_STATE = frozenset(
    {
        "Assert",
        "AssignVariableOp",
        "If",
        "PartitionedCall",
        "RandomStandardNormal",
        "RandomUniform",
        "RandomUniformInt",
        "ReadVariableOp",
        "ResourceGather",
        "StatefulPartitionedCall",
        "VarHandleOp",
        "VarIsInitializedOp",
        "While",
    }
)
# Operations on files and the like take names, which are strings. These may have strings, for they
# do nothing with them but build the message of an Assert.
_WITH_STRINGS = frozenset(
    {
        "Assert",
        "Const",
        "Identity",
        "If",
        "PartitionedCall",
        "StatefulPartitionedCall",
        "StatelessIf",
    }
)


def check_graph(saved_model: bytes, where: str) -> None:
    """Checks that a SavedModel, loaded and called, only computes.

    Looks at all functions that TensorFlow reaches from the objects it loads; what else is in the
    file (how it was saved) is never run.

    Args:
        saved_model: the content of `saved_model.pb`.
        where: whose it is, for the message.

    Raises:
        KzooError: if it is no SavedModel of TensorFlow 2, or has an operation that is not allowed.
    """
    graph = parse_graph(saved_model, where)
    functions = [*graph.object_graph_def.concrete_functions, *_gradients(graph)]
    for node in operations_reached(graph, functions):
        _check_operation(node, where)


def kinds_of_operations(saved_model: bytes, where: str) -> set[str]:
    """The operations that a SavedModel has anywhere, its own functions apart.

    Args:
        saved_model: the content of `saved_model.pb`.
        where: whose it is, for messages.

    Raises:
        KzooError: if it is no SavedModel of TensorFlow 2.
    """
    graph = parse_graph(saved_model, where)
    functions = [function.signature.name for function in graph.graph_def.library.function]
    inside = {node.op for node in operations_reached(graph, functions)}
    return inside | {node.op for node in graph.graph_def.node}.difference(functions)


def operations_reached(
    graph: meta_graph_pb2.MetaGraphDef, functions: Iterable[str]
) -> Iterator[node_def_pb2.NodeDef]:
    """The operations of functions, and of those that they call; not the calls themselves.

    Args:
        graph: as `parse_graph` returns it.
        functions: names; one that the graph does not have is passed over.
    """
    library = {function.signature.name: function for function in graph.graph_def.library.function}
    todo = list(functions)
    seen = set()
    while todo:
        name = todo.pop()
        if name in seen or name not in library:
            continue
        seen.add(name)
        for node in library[name].node_def:
            todo.extend(_functions_of(node))
            if node.op not in library:
                yield node


def parse_graph(saved_model: bytes, where: str) -> meta_graph_pb2.MetaGraphDef:
    """The one graph of a SavedModel that TensorFlow 2 has written.

    Raises:
        KzooError: if it is no such thing.
    """
    parsed = saved_model_pb2.SavedModel()
    try:
        parsed.ParseFromString(saved_model)
    except DecodeError as error:
        raise KzooError(f"{where}: saved_model.pb is damaged; export it again") from error
    # Others are loaded in another way, which runs the graph's own operations.
    if len(parsed.meta_graphs) != 1 or not parsed.meta_graphs[0].HasField("object_graph_def"):
        raise KzooError(f"{where}: this SavedModel was not written by TensorFlow 2")
    return parsed.meta_graphs[0]


def _gradients(graph: meta_graph_pb2.MetaGraphDef) -> Iterator[str]:
    for gradient in graph.graph_def.library.gradient:
        yield gradient.gradient_func
    for gradient in graph.graph_def.library.registered_gradients:
        yield gradient.gradient_func


def _functions_of(node: node_def_pb2.NodeDef) -> Iterator[str]:
    """The names of the functions that an operation calls."""
    yield node.op
    for value in node.attr.values():
        yield value.func.name
        for function in value.list.func:
            yield function.name


def _check_operation(node: node_def_pb2.NodeDef, where: str) -> None:
    operation = op_def_registry.get(node.op)
    if operation is None:
        problem = "is not an operation of TensorFlow"
    elif operation.is_stateful and node.op not in _WITH_STATE:
        problem = "does more than compute"
    elif node.op not in _WITH_STRINGS and (
        any(_is_string(argument.type) for argument in (*operation.input_arg, *operation.output_arg))
        or any(map(_has_strings, node.attr.values()))
    ):
        problem = "works on strings"
    else:
        return
    raise KzooError(
        f"{where}: its graph has the operation {node.op}, which {problem}. No encoder that kzoo "
        "exports has it: do not use a file that you do not trust"
    )


def _has_strings(value: attr_value_pb2.AttrValue) -> bool:
    return _is_string(value.type) or any(map(_is_string, value.list.type))


def _is_string(dtype: int) -> bool:
    return dtype in (types_pb2.DT_STRING, types_pb2.DT_STRING_REF)
