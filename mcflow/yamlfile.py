"""Read a YAML file strictly, remembering where everything stands.

PyYAML's safe loader, but aliases (bombs) and duplicate keys are refused, ``1e3`` is a number,
and the node tree is kept so that an error can name line and column.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from mcflow.errors import InputError

LARGEST = 1_000_000  # bytes
DEEPEST = 50  # levels

Place = Sequence[str | int]


class _Loader(yaml.SafeLoader):
    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.MarkedYAMLError(problem="aliases are not accepted", problem_mark=self.peek_event().start_mark)  # type: ignore[no-untyped-call]
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        if not isinstance(node, yaml.MappingNode):
            raise yaml.MarkedYAMLError(problem="expected a mapping here", problem_mark=node.start_mark)
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise yaml.MarkedYAMLError(problem=f"keys must be text, got {key!r}", problem_mark=key_node.start_mark)
            if key in seen:
                raise yaml.MarkedYAMLError(problem=f"key {key!r} is given twice", problem_mark=key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


# YAML 1.1 takes 1e3 for text, 1:30 for 90, 010 for 8 and reads dates. Numbers here are decimals;
# everything else stays text, which then is refused by name.
_NUMBERS = ("int", "float", "timestamp")
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in pairs if tag.rpartition(":")[2] not in _NUMBERS]
    for first, pairs in _Loader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"^[-+]?(?:0|[1-9][0-9_]*)$"), list("-+0123456789"))
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"^[-+]?(?:(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)?|\.(?:inf|Inf|INF))$|^\.(?:nan|NaN|NAN)$"
    ),
    list("-+.0123456789"),
)


class YamlFile:
    """A parsed document with positions.

    Attributes
    ----------
    name : str
        How messages call it.
    data : Any
        The document as plain Python.
    """

    def __init__(self, name: str, data: Any, node: Any = None) -> None:
        self.name = name
        self.data = data
        self._node = node
        self._overridden: dict[tuple[str | int, ...], str] = {}

    @classmethod
    def read(cls, path: str | Path) -> YamlFile:
        """Parse a file.

        Raises
        ------
        InputError
            If it cannot be read, is too large, or is not strict YAML; with line and column.
        """
        name = str(path)
        try:
            with open(path, "rb") as file:
                content = file.read(LARGEST + 1)
        except FileNotFoundError:
            raise InputError("no such file", where=name) from None
        except OSError as error:
            raise InputError(f"cannot be read: {error.strerror}", where=name) from None
        if len(content) > LARGEST:
            raise InputError(f"larger than {LARGEST:,} bytes; that is no experiment file", where=name)
        try:
            text = content.decode("utf-8")
        except UnicodeDecodeError:
            raise InputError("not UTF-8 text", where=name) from None
        return cls.parse(name, text)

    @classmethod
    def parse(cls, name: str, text: str) -> YamlFile:
        """Parse text; see `read`."""
        loader = None
        try:
            loader = _Loader(text)
            try:
                node = loader.get_single_node()
                _check_depth(node)
                data = loader.construct_document(node) if node is not None else None
            finally:
                loader.dispose()
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            where = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
            raise InputError(error.problem or "not valid YAML", where=where) from None
        except Exception as error:  # whatever a tag on the wrong thing provokes in PyYAML
            said = (str(error).splitlines() or [type(error).__name__])[0]
            node = _constructing(loader)
            if node is not None:
                where = f"{name}:{node.start_mark.line + 1}:{node.start_mark.column + 1}"
                why = f": {said}" if isinstance(error, ValueError) else ""
                raise InputError(f"{str(node.value)[:40]!r} does not suit its tag{why}", where=where) from None
            raise InputError(f"not valid YAML: {said}", where=name) from None
        return cls(name, data, node)

    def override(self, assignment: str) -> None:
        """Apply one ``--set KEY=VALUE``: KEY a dotted path, VALUE in YAML.

        Raises
        ------
        InputError
            If the text has no ``=`` or its path does not lead into the document.
        """
        key, equals, text = assignment.partition("=")
        option = f"--set {key}"
        if not equals or not key:
            raise InputError(f"expected KEY=VALUE, got {assignment!r}", where="--set")
        value = YamlFile.parse(option, text).data
        place = tuple(
            int(part) if re.fullmatch(r"[0-9]{1,9}", part) else part for part in re.split(r"[.\[\]]+", key.rstrip("]"))
        )
        holder: Any = self.data
        for part in place[:-1]:
            if (isinstance(holder, dict) and part in holder) or (
                isinstance(holder, list) and isinstance(part, int) and part < len(holder)
            ):
                holder = holder[part]  # type: ignore[index]
            else:
                raise InputError(f"{dotted(place[:-1])} is not in {self.name}", where=option)
        last = place[-1]
        fits = isinstance(last, int) and last < len(holder) if isinstance(holder, list) else isinstance(holder, dict)
        if not fits:
            raise InputError(f"{key} is not in {self.name}", where=option)
        holder[last] = value
        self._overridden[place] = option

    def where(self, place: Place) -> str:
        """Return ``file:line:column: dotted.place`` of a place, as near as it can be found."""
        for start, option in self._overridden.items():
            if tuple(place[: len(start)]) == start:
                return f"{option}: {dotted(place)}" if len(place) > len(start) else option
        node = self._node
        mark = node.start_mark if node is not None else None
        for part in place:
            found = None
            if isinstance(node, yaml.MappingNode):
                for key_node, value_node in node.value:
                    if key_node.value == part:
                        found, mark = value_node, key_node.start_mark
            elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
                found = node.value[part]
                mark = found.start_mark
            if found is None:
                break
            node = found
        position = f":{mark.line + 1}:{mark.column + 1}" if mark is not None else ""
        return f"{self.name}{position}: {dotted(place)}" if place else f"{self.name}{position}"


def dotted(place: Place) -> str:
    """``("axes", "lambda", 2)`` -> ``axes.lambda[2]``."""
    text = ""
    for part in place:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def _constructing(loader: Any) -> Any:
    """The node that the loader was at when construction failed, as far as it says."""
    nodes = list(getattr(loader, "recursive_objects", {}))
    return nodes[-1] if nodes else None


def _check_depth(root: Any) -> None:
    stack = [(root, 0)]
    while stack:
        node, depth = stack.pop()
        if depth > DEEPEST:
            raise yaml.MarkedYAMLError(problem="nested too deeply", problem_mark=node.start_mark)
        if isinstance(node, yaml.MappingNode):
            stack += [(child, depth + 1) for pair in node.value for child in pair]
        elif isinstance(node, yaml.SequenceNode):
            stack += [(child, depth + 1) for child in node.value]
