"""The objects in a checkpoint of Model Garden, without Model Garden."""

from collections.abc import Collection

from tensorflow.core.protobuf import trackable_object_graph_pb2

from kzoo.errors import KzooError

_VALUE = "VARIABLE_VALUE"


class ObjectGraph:
    """Objects with their attributes, and the tensors of those that are variables.

    An object that is reached by two names is one object: so it does not matter under which of them
    a tensor was saved, nor whether an encoder of the first or the second kind saved it.

    Args:
        graph: as the checkpoint has it.
        where: the checkpoint, for messages.

    Raises:
        KzooError: an attribute is an object that is not there.
    """

    def __init__(self, graph: trackable_object_graph_pb2.TrackableObjectGraph, where: str):
        self._where = where
        self._attributes = [
            {child.local_name: child.node_id for child in node.children} for node in graph.nodes
        ]
        self._keys = [
            next((one.checkpoint_key for one in node.attributes if one.name == _VALUE), None)
            for node in graph.nodes
        ]
        for attributes in self._attributes:
            for name, node in attributes.items():
                if not 0 <= node < len(self._keys):
                    raise KzooError(f"{where}: the object {name} that its graph names is not there")

    def only_object_with(self, attributes: Collection[str], what: str) -> int | None:
        """The one object that has certain attributes; None where none has.

        Args:
            attributes: their names.
            what: such an object is, for messages.

        Raises:
            KzooError: more than one has them.
        """
        wanted = set(attributes)
        found = [node for node, has in enumerate(self._attributes) if wanted <= has.keys()]
        if len(found) > 1:
            raise KzooError(
                f"{self._where}: it holds {len(found)} objects that are {what}; save the one that "
                "is meant alone: tf.train.Checkpoint(encoder=…)"
            )
        return found[0] if found else None

    def names_of(self, node: int) -> list[str]:
        """The names of an object's attributes."""
        return list(self._attributes[node])

    def reached(self, node: int | None, attributes: str) -> int | None:
        """The object at the end of some attributes with `/` between them, if it is there."""
        for attribute in attributes.split("/"):
            if node is None:
                return None
            node = self._attributes[node].get(attribute)
        return node

    def key(self, node: int | None) -> str | None:
        """The name of the tensor of an object that is a variable; None of any other."""
        return None if node is None else self._keys[node]

    def keys_below(self, attributes: Collection[str]) -> set[str]:
        """The names of all tensors that objects under attributes of some names lead to."""
        waiting = [
            node for has in self._attributes for name, node in has.items() if name in attributes
        ]
        reached: set[int] = set()
        while waiting:
            node = waiting.pop()
            if node not in reached:
                reached.add(node)
                waiting += self._attributes[node].values()
        return {self._keys[node] for node in reached} - {None}
