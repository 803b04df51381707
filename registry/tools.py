"""Tools: what a model may call. A `Tool` is a frozen value; `@tool` makes one of a typed function."""

from __future__ import annotations

import difflib
import functools
import inspect
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar, TypedDict, Unpack, cast, overload

from registry.errors import DagwrightError, UsageError
from registry.llm_types import ToolSpec
from registry.signatures import Signature, read_signature
from registry.tool_context import context_parameter

TIMEOUT = 60.0
"""Seconds a tool may run unless it says otherwise."""

MAX_RESULT_CHARS = 20_000
"""Characters of a result or an error that reach the model unless the tool says otherwise."""

NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}


class ToolArgumentsError(DagwrightError, ValueError):
    """The arguments don't fit the tool.

    For the model: the text names the fields and gives the tool's expected arguments. `problems`: one text a field.
    """

    code = "tool_arguments"

    def __init__(self, message: str = "", *, problems: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.problems = tuple(problems)


class UnknownToolError(UsageError, KeyError):
    """There is no tool of this name."""

    code = "unknown_tool"
    __str__ = Exception.__str__  # KeyError's own shows the repr


class Declarations(TypedDict, total=False):
    """What a tool may declare besides its name, description, parameters and function: the fields of `Tool`."""

    read_only: bool
    idempotent: bool
    pure: bool
    pinned: bool
    requires_approval: bool
    requires_trusted_input: bool
    verify: Callable[..., Any] | None
    timeout: float
    max_result_chars: int
    network: bool
    filesystem: bool
    untrusted: bool
    origin: str
    context: str


@dataclass(frozen=True, slots=True, eq=False)
class Tool:
    """Something a model may call.

    `parameters` is a JSON Schema of an object; `run(**arguments)` is sync or async and may return anything.
    `read_only`: changes nothing (undeclared means that it writes). `idempotent`: twice is as good as once. `pure`: the
    same arguments give the same result. `pinned`: its results survive compaction. `requires_approval`: a human decides
    before each call. `requires_trusted_input`: not to be called on the word of untrusted text. `verify(key)`, sync or
    async: whether the effect of the call with this key happened, True or False; it is asked about a call whose process
    died, and where it raises nobody knows. `timeout` is seconds, `max_result_chars` characters. `network` and
    `filesystem`: what it needs. `untrusted`: its results hold texts of strangers, as those of `network` tools do;
    `origin` says where they come from (the tool's name, unless said). `context` names the parameter of `run` that takes
    a ToolContext; one with that type hint is found by itself. `signature` and `function` are set by `@tool`.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    run: Callable[..., Any]
    _: KW_ONLY
    read_only: bool = False
    idempotent: bool = False
    pure: bool = False
    pinned: bool = False
    requires_approval: bool = False
    requires_trusted_input: bool = False
    verify: Callable[..., Any] | None = None
    timeout: float = TIMEOUT
    max_result_chars: int = MAX_RESULT_CHARS
    network: bool = False
    filesystem: bool = False
    untrusted: bool = False
    origin: str = ""
    context: str = ""
    signature: Signature | None = field(default=None, repr=False)
    function: Callable[..., Any] | None = field(default=None, repr=False)
    spec: ToolSpec = field(init=False, repr=False)

    SMALLEST_RESULT: ClassVar[int] = 200

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip():
            raise UsageError(f"a tool needs a name, not {self.name!r}")
        if not callable(self.run):
            raise UsageError(f"tool {self.name!r}: run must be a function, not {self.run!r}")
        if not isinstance(self.parameters, Mapping) or self.parameters.get("type", "object") != "object":
            raise UsageError(f'tool {self.name!r}: parameters must be a JSON Schema of type "object"')
        if not self.timeout > 0:
            raise UsageError(f"tool {self.name!r}: timeout must be more than 0 seconds, not {self.timeout!r}")
        if self.max_result_chars < self.SMALLEST_RESULT:
            raise UsageError(f"tool {self.name!r}: max_result_chars must be at least {self.SMALLEST_RESULT}")
        if not self.context:
            object.__setattr__(self, "context", context_parameter(self.function or self.run))
        parameters = {**NO_PARAMETERS, **self.parameters}
        object.__setattr__(self, "parameters", parameters)
        object.__setattr__(self, "spec", ToolSpec(self.name, self.description, parameters))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function itself, as if it were not a tool."""
        return (self.function or self.run)(*args, **kwargs)

    @property
    def trusted(self) -> bool:
        """Whether its results hold only what its own author wrote."""
        return not (self.network or self.untrusted)

    def check(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments, coerced to the schema where that is safe; JSON data still.

        Raises ToolArgumentsError, with a text for the model, where they don't fit.
        """
        from registry.schema import coerce

        if not isinstance(arguments, Mapping):
            raise self._refused([f"the arguments must be an object, not {type(arguments).__name__}"])
        value, problems = coerce(dict(arguments), self.parameters)
        texts = [str(problem) for problem in problems]
        if not texts and self.signature is not None:
            texts = self.signature.convert(value)[1]
        if texts:
            raise self._refused(texts)
        return cast("dict[str, Any]", value)

    def _refused(self, problems: Sequence[str]) -> ToolArgumentsError:
        text = f"The arguments of {self.name} are wrong: {'; '.join(problems)}.\n{expected_arguments(self.parameters)}"
        return ToolArgumentsError(text, problems=problems)


def expected_arguments(parameters: Mapping[str, Any]) -> str:
    """What a tool expects, for a model that got it wrong: a line for each argument, or the schema where it is deep."""
    properties = parameters.get("properties") or {}
    if "$defs" in parameters or not properties or not isinstance(properties, Mapping):
        known = json.dumps(parameters, ensure_ascii=False) if "$defs" in parameters else "none"
        return f"Expected arguments: {known}"
    required = parameters.get("required", ())
    lines = [_argument_line(name, schema, name in required) for name, schema in properties.items()]
    return "\n".join(["Expected arguments:", *lines])


def _argument_line(name: str, schema: Any, required: bool) -> str:
    schema = dict(schema) if isinstance(schema, Mapping) else {}
    note = schema.pop("description", "")
    kind = schema["type"] if set(schema) == {"type"} else json.dumps(schema, ensure_ascii=False)
    line = f"- {name} ({kind}, {'required' if required else 'optional'})"
    return f"{line}: {note}" if note else line


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...


@overload
def tool(
    *, name: str | None = None, description: str | None = None, **declarations: Unpack[Declarations]
) -> Callable[[Callable[..., Any]], Tool]: ...


def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    **declarations: Unpack[Declarations],
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Makes a Tool of a sync or async function with docstring and type hints; it stays callable as the function.

    The JSON Schema comes from the signature, by pydantic; the whole docstring (or `description`) and the parameters'
    descriptions (`Annotated[..., Field(description=…)]` or an `Args:` section) reach the model. Arguments are
    converted to the hinted types before a model's call. Raises UsageError for what can't be described.
    """
    known = {**Declarations.__annotations__}
    if unknown := sorted(set(declarations) - set(known)):
        raise UsageError(f"@tool knows no {', '.join(unknown)}: it takes name, description, {', '.join(known)}")

    def decorate(function: Callable[..., Any], localns: Mapping[str, Any] | None = None) -> Tool:
        if isinstance(function, Tool):
            raise UsageError(f"{function.name!r} is a tool already")
        if not callable(function):
            raise UsageError(f"@tool goes on a function, not on {function!r}")
        here = localns if localns is not None else sys._getframe(1).f_locals
        signature = read_signature(function, name=name, description=description, localns=here)
        return Tool(
            signature.name,
            signature.description,
            signature.parameters,
            _converting(function, signature),
            signature=signature,
            function=function,
            **declarations,
        )

    return decorate if function is None else decorate(function, sys._getframe(1).f_locals)


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling it gives a coroutine: for functions, methods, partials and objects with `__call__`."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def _converting(function: Callable[..., Any], signature: Signature) -> Callable[..., Any]:
    """The function behind a conversion of JSON arguments to its own types."""

    def convert(arguments: Mapping[str, Any]) -> dict[str, Any]:
        given = {name: value for name, value in arguments.items() if name != signature.context}
        values, problems = signature.convert(given)
        if problems:
            expected = expected_arguments(signature.parameters)
            text = f"The arguments of {signature.name} are wrong: {'; '.join(problems)}.\n{expected}"
            raise ToolArgumentsError(text, problems=problems)
        return values if len(given) == len(arguments) else {**values, signature.context: arguments[signature.context]}

    if is_async(function):

        async def run_async(**arguments: Any) -> Any:
            return await function(**convert(arguments))

        return functools.wraps(function, updated=())(run_async) if hasattr(function, "__name__") else run_async

    def run(**arguments: Any) -> Any:
        return function(**convert(arguments))

    return functools.wraps(function, updated=())(run) if hasattr(function, "__name__") else run


class ToolRegistry:
    """Tools by name, in the order of registration. Bare functions are taken as by `@tool`."""

    def __init__(self, tools: Iterable[Tool | Callable[..., Any]] = ()) -> None:
        self._tools: dict[str, Tool] = {}
        for entry in tools:
            self.register(entry)

    def register(self, entry: Tool | Callable[..., Any]) -> Tool:
        """Adds a tool and returns it. Raises UsageError where its name is taken or its description is empty."""
        added = entry if isinstance(entry, Tool) else tool(entry)
        if not added.description or not added.description.strip():
            raise UsageError(f"tool {added.name!r} has no description: it is all that a model is told of the tool")
        if added.name in self._tools:
            raise UsageError(f"there is a tool {added.name!r} already: give one of them another name")
        self._tools[added.name] = added
        return added

    def get(self, name: str) -> Tool:
        """The tool of this name. Raises UnknownToolError, which names the nearest name and lists what there is."""
        found = self._tools.get(name)
        if found is None:
            nearest = self.nearest(name)
            hint = f" Did you mean {nearest!r}?" if nearest else ""
            there = f"Tools: {', '.join(self._tools)}." if self._tools else "There are no tools."
            raise UnknownToolError(f"There is no tool {name!r}.{hint} {there}")
        return found

    def names(self) -> tuple[str, ...]:
        """The names, in the order of registration."""
        return tuple(self._tools)

    def subset(self, names: Iterable[str]) -> ToolRegistry:
        """A registry of these tools, in the order of `names`. Raises UnknownToolError."""
        return ToolRegistry(self.get(name) for name in dict.fromkeys(names))

    def nearest(self, name: str) -> str | None:
        """The registered name that is most like this one; None where none is."""
        plain = {_plain(known): known for known in self._tools}
        close = difflib.get_close_matches(_plain(name), plain, n=1, cutoff=0.5)
        return plain[close[0]] if close else None

    def similar_descriptions(self, threshold: float = 0.9) -> tuple[tuple[str, str], ...]:
        """Pairs of names whose descriptions are so alike (0 to 1, by difflib) that a model can't tell them apart."""
        tools = list(self._tools.values())
        pairs = []
        for number, first in enumerate(tools):
            for second in tools[number + 1 :]:
                matcher = difflib.SequenceMatcher(None, first.description.lower(), second.description.lower())
                if matcher.real_quick_ratio() >= threshold <= matcher.quick_ratio() and matcher.ratio() >= threshold:
                    pairs.append((first.name, second.name))
        return tuple(pairs)

    def __iter__(self) -> Iterator[Tool]:
        return iter(tuple(self._tools.values()))

    def __len__(self) -> int:
        return len(self._tools)

    def __contains__(self, name: object) -> bool:
        return name in self._tools if isinstance(name, str) else name in self._tools.values()


def _plain(name: str) -> str:
    return name.lower().replace("-", "_").replace(".", "_")
