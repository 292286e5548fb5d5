"""What a model may call: `Tool` and `@tool`, from the JSON text of a call to the parts of its result."""

from __future__ import annotations

import functools
import inspect
import math
import re
import sys
import types
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, TypeAlias, TypedDict, Unpack, cast, overload

import anyio
import attrs
import msgspec
from msgspec.structs import asdict

from ._codec import JSON, clean_text, encode, to_plain
from ._errors import CodecError, ToolError, ToolFailed
from ._messages import Part, TextPart, ToolResult, ToolSpec
from ._signature import Arguments, Decode, context_parameter, is_async, read_signature, where, written
from ._threads import ToolThreads as ToolThreads
from ._threads import clip, failed

Predicate: TypeAlias = Callable[[Mapping[str, Any]], bool]
"""Says from a call's arguments whether the call needs an approval."""

EXCERPT = 500
"""Characters of bad arguments that the model gets to see again."""

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")


@attrs.frozen(kw_only=True)
class Tool:
    """A function that a model may call. Made by `@tool`, or by `Tool.from_schema` where a JSON Schema is given.

    Tools are equal when they call the same function by the same name. `attrs.evolve(tool, name=…)` renames one.
    """

    name: str = attrs.field()
    function: Callable[..., Any]
    description: str = attrs.field(default="", eq=False)
    schema: Mapping[str, Any] = attrs.field(eq=False, repr=False)
    """JSON Schema of the arguments, an object."""
    timeout: float | None = attrs.field(default=None, eq=False)
    """Seconds one call may take."""
    parallel: bool = attrs.field(default=True, eq=False)
    """Whether other calls of the same step may run beside it."""
    idempotent: bool = attrs.field(default=False, eq=False)
    """Whether a call may run again after a crash that left its outcome unknown."""
    requires_approval: bool | Predicate = attrs.field(default=False, eq=False)
    deferred: bool = attrs.field(default=False, eq=False)
    """Announced by its name only, until it is loaded."""
    context_parameter: str | None = attrs.field(default=None, eq=False, repr=False)
    """The parameter that receives the `ToolContext`."""
    unbound: bool = attrs.field(default=False, eq=False, repr=False)
    """Whether it is a method that has not been taken from an instance."""
    spec: ToolSpec = attrs.field(init=False, eq=False, repr=False)
    """The tool as a model sees it."""
    _is_async: bool = attrs.field(eq=False, repr=False)
    _decode: Decode = attrs.field(eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        _check_name(self.name, self.function)
        if self.timeout is not None and not (0 < self.timeout < math.inf):
            raise ToolError(f"tool {self.name!r}: timeout must be a number of seconds above 0, not {self.timeout}")
        if is_async(self.requires_approval):
            raise ToolError(f"tool {self.name!r}: requires_approval takes a plain function, not an async one")
        object.__setattr__(self, "spec", ToolSpec(self.name, self.description, self.schema))

    @classmethod
    def from_schema(
        cls, function: Callable[..., Any], *, name: str, description: str, schema: Mapping[str, Any], **options: Any
    ) -> Tool:
        """Return a tool whose schema is given, such as one of an MCP server.

        `function` gets the arguments as keywords. They are an object, but nothing checks them against `schema`: that
        is left to whoever gave it. `options` are those of `tool`.
        """
        return cls(
            name=name,
            function=function,
            description=description,
            schema=schema,
            context_parameter=context_parameter(function),
            is_async=is_async(function),
            decode=msgspec.json.Decoder(dict[str, Any]).decode,
            **options,
        )

    def __get__(self, instance: object, owner: type | None = None) -> Tool:
        """Bind a tool that is a method, as Python binds functions."""
        if not self.unbound:
            return self
        if isinstance(self.function, classmethod):
            return attrs.evolve(self, function=self.function.__get__(instance, owner), unbound=False)
        if instance is None:
            return self
        return attrs.evolve(self, function=types.MethodType(self.function, instance), unbound=False)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself, as if it had not been decorated."""
        return self.function(*args, **kwargs)

    def decode(self, arguments: str) -> Arguments:
        """Return the keyword arguments that JSON text means, validated and typed.

        An empty text means no arguments, and so does `null` where none is required. Of a name that is there twice the
        last one wins. NaN and Infinity are no JSON. Lone surrogates become U+FFFD.

        Raises:
            ToolFailed: with reason `arguments` and a message for the model.
        """
        try:
            value = self._decode(arguments)
        except Exception as error:
            value = self._decode_leniently(arguments, error)
        return value if type(value) is dict else asdict(value)

    def _decode_leniently(self, arguments: str, error: Exception) -> Any:
        try:
            if arguments.strip() in ("", "null"):
                return self._decode("{}")
            if isinstance(error, UnicodeEncodeError) or _SURROGATE_ESCAPE.search(arguments):
                return self._decode(_repaired(arguments))
        except Exception as later:
            error = later
        raise self._bad_arguments(error, arguments) from error

    def validate(self, args: Mapping[str, Any]) -> Arguments:
        """Return `args` validated as if a model had sent them; values may be typed already or as in JSON.

        Raises:
            ToolFailed: with reason `arguments`.
        """
        try:
            value = self._decode(encode(args).decode())
            return value if type(value) is dict else asdict(value)
        except Exception as error:
            raise self._bad_arguments(error, repr(dict(args))) from error

    def _bad_arguments(self, error: Exception, arguments: str) -> ToolFailed:
        reason = "nested too deeply" if isinstance(error, RecursionError) else clean_text(str(error))
        message = f"invalid arguments for tool {self.name!r}: {clip(reason, 300)}"
        return ToolFailed(
            f"{message}. They were: {clip(clean_text(arguments), EXCERPT) or '(empty)'}",
            tool=self.name,
            reason="arguments",
        )

    def plain(self, args: Mapping[str, Any]) -> dict[str, JSON]:
        """Return `args` as JSON values, for events and hashes.

        Raises:
            ToolFailed: with reason `arguments`, for what a model may send but nothing can keep: too deep a nesting.
        """
        try:
            return cast("dict[str, JSON]", to_plain(args))
        except CodecError as error:
            raise self._bad_arguments(error, "(see above)") from error

    async def call(
        self, args: Mapping[str, Any], ctx: Any = None, threads: ToolThreads | None = None
    ) -> tuple[Part, ...]:
        """Run the function and return its value as parts of a result.

        A sync function runs in a thread of `threads`. What the function raises becomes `ToolFailed`, except for
        cancellation, `KeyboardInterrupt` and the turn's own signals, which pass unchanged.

        Args:
            args: what `decode` or `validate` returned.
            ctx: the `ToolContext`, for a function that asks for it.
            threads: the agent's; without it the call gets a place of its own.

        Raises:
            ToolFailed: with reason `error`, `timeout`, `exit` or `limiter`.
        """
        try:
            if self.timeout is None:
                if self._is_async and self.context_parameter is None and not self.unbound:
                    value = await self.function(**args)
                else:
                    value = await self._value(args, ctx, threads)
            else:
                with anyio.move_on_after(self.timeout) as scope:
                    value = await self._value(args, ctx, threads)
                if scope.cancelled_caught:
                    raise ToolFailed(
                        f"tool {self.name!r} took longer than {self.timeout:g} s", tool=self.name, reason="timeout"
                    ) from TimeoutError()
            return to_parts(value)
        except ToolFailed as failure:
            failure.tool = failure.tool or self.name
            raise
        except (Exception, SystemExit) as error:
            raise failed(self.name, error) from error
        except BaseException as error:
            if _is_stray_cancellation(error):
                raise failed(self.name, error) from error
            raise

    async def _value(self, args: Mapping[str, Any], ctx: Any, threads: ToolThreads | None) -> Any:
        if self.unbound:
            raise ToolFailed(f"tool {self.name!r} is a method: take it from an instance, not from the class")
        if self.context_parameter is not None:
            args = {**args, self.context_parameter: ctx}
        if self._is_async:
            return await self.function(**args)
        value = await (threads or ToolThreads(1)).run(self.name, functools.partial(self.function, **args))
        return await value if inspect.isawaitable(value) else value


def to_parts(value: Any) -> tuple[Part, ...]:
    """Return what a tool returned as parts of its result.

    Text and parts stay what they are (text is cleaned), None is an empty text, and anything else becomes JSON text.

    Raises:
        ToolFailed: for a `ToolResult`, and for a value that cannot become JSON.
    """
    if isinstance(value, str):
        return (TextPart(value if value.isascii() and "\0" not in value else clean_text(value)),)
    if value is None:
        return (TextPart(""),)
    if isinstance(value, Part):
        return (_content(value),)
    if isinstance(value, list | tuple) and any(isinstance(item, Part) for item in value):
        return tuple([_content(item) for item in value])
    try:
        return (TextPart(encode(value).decode()),)
    except CodecError as error:
        raise ToolFailed(f"the tool's return value cannot be sent to the model: {error}") from error


def _content(value: Any) -> Part:
    if isinstance(value, ToolResult):
        raise ToolFailed("a tool returns the content of its result (text, parts or data), not a ToolResult")
    if isinstance(value, str):
        return TextPart(clean_text(value))
    if isinstance(value, TextPart):
        return TextPart(clean_text(value.text))
    if isinstance(value, Part):
        return value
    raise ToolFailed(f"a tool returned a list of parts that also holds a {type(value).__name__}; make it a TextPart")


def tools_of(owner: object) -> tuple[Tool, ...]:
    """Return the tools that are methods of `owner`, bound to it if it is an instance, in order of definition."""
    cls = owner if isinstance(owner, type) else type(owner)
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        found.update(vars(base))
    instance = None if owner is cls else owner
    tools = [value.__func__ if isinstance(value, staticmethod) else value for value in found.values()]
    return tuple([value.__get__(instance, cls) for value in tools if isinstance(value, Tool)])


class ToolOptions(TypedDict, total=False):
    """What `@tool` can be told; `tool` says what each means."""

    name: str
    description: str
    timeout: float | None
    parallel: bool
    idempotent: bool
    requires_approval: bool | Predicate
    deferred: bool
    strict: bool


@overload
def tool(function: Callable[..., Any], /, **options: Unpack[ToolOptions]) -> Tool: ...
@overload
def tool(**options: Unpack[ToolOptions]) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(
    function: Callable[..., Any] | None = None, /, **options: Unpack[ToolOptions]
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a function or method a tool; its signature is the schema, its docstring the description.

    A parameter annotated `ToolContext` receives the context of the call and is not in the schema.

    Args:
        name: the model's name for it, `[a-zA-Z0-9_-]{1,64}`; default: the function's.
        description: default: the docstring without its sections. An `Args:` section describes the parameters.
        timeout: seconds one call may take.
        parallel: False makes it a barrier: it runs alone among the calls of a step.
        idempotent: whether it may run again after a crash that left its outcome unknown.
        requires_approval: True, or a function of the arguments that says whether this call needs one.
        deferred: announce it by name only, until it is loaded.
        strict: False also takes `"1"` for a number, and the like.

    Raises:
        ToolSchemaError: a parameter that JSON Schema cannot express.
        ToolError: something that is no function, or a name that models do not take.
    """
    if unknown := options.keys() - ToolOptions.__annotations__.keys():
        raise TypeError(f"tool() has no option {sorted(unknown)}; it takes {', '.join(ToolOptions.__annotations__)}")
    frame = sys._getframe(1)

    def make(function: Callable[..., Any]) -> Tool:
        return _build(function, frame, **options)

    return make if function is None else make(function)


def _build(
    function: Any,
    frame: FrameType,
    *,
    name: str = "",
    description: str | None = None,
    strict: bool = True,
    **options: Any,
) -> Tool:
    kind = next((kind for kind in (staticmethod, classmethod) if isinstance(function, kind)), None)
    plain = function.__func__ if kind else function
    name = name or str(getattr(written(plain), "__name__", ""))
    place = where(plain, name)
    _check_function(plain, place)
    _check_name(name, plain)
    signature = read_signature(plain, place, kind=kind, frame=frame, strict=strict)
    return Tool(
        name=name,
        function=function if kind is classmethod else plain,
        description=signature.description if description is None else description,
        schema=signature.schema,
        context_parameter=signature.context_parameter,
        unbound=signature.is_method,
        is_async=is_async(plain),
        decode=signature.decode,
        **options,
    )


def _check_name(name: str, function: Any) -> None:
    if not _NAME.fullmatch(name):
        raise ToolError(f"{where(function, name)}: a name matches [a-zA-Z0-9_-]{{1,64}}; write tool(name='…')")


def _check_function(function: Any, place: str) -> None:
    if isinstance(function, type):
        raise ToolError(f"{place} is a class; put @tool on a function or on the methods that a model may call")
    if isinstance(function, Tool):
        raise ToolError(f"{place} is a tool already; write @tool once")
    if not callable(function):
        raise ToolError(f"{place} is no function; write @tool, or @tool(name=…) with keywords only")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ToolError(f"{place} is a generator; collect what it yields and return a list")


def _repaired(arguments: str) -> str:
    """Return JSON text with its lone surrogates, escaped or not, replaced."""
    import json

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no JSON number")

    value = json.loads(arguments, parse_constant=refuse)
    return encode(value).decode()


def _is_stray_cancellation(error: BaseException) -> bool:
    """Whether the tool raised a cancellation that nobody asked for: asyncio lets anything raise one."""
    import asyncio

    if not isinstance(error, asyncio.CancelledError) or anyio.get_cancelled_exc_class() is not asyncio.CancelledError:
        return False
    task = asyncio.current_task()
    return task is not None and not task.cancelling() and anyio.current_effective_deadline() > -math.inf
