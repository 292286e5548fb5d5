"""A function's signature as JSON Schema, and the decoder of its arguments.

msgspec makes the schema and validates in one decode. pydantic does both for a function whose parameters are annotated
with pydantic's types, and is imported for such a function only.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import re
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any, TypeAlias, cast

import attrs
import msgspec

from ._codec import JSON, to_plain
from ._errors import CodecError, ToolError, ToolSchemaError

Arguments: TypeAlias = dict[str, Any]
Decode: TypeAlias = Callable[[str], Any]
"""Takes JSON text; returns the arguments by name, or as a msgspec struct."""

_SECTION = re.compile(
    r"^\s*((Args|Arguments|Parameters|Params|Returns|Raises)\s*:?\s*$|:(param|returns?|raises)\b)", re.MULTILINE
)


@attrs.frozen
class Signature:
    """What a function's signature and docstring say to a model."""

    description: str
    schema: dict[str, Any]
    decode: Decode
    context_parameter: str | None
    """The parameter that receives the `ToolContext`."""
    is_method: bool
    """Whether the first parameter is filled by binding."""


def read_signature(function: Any, where: str, *, kind: type | None, frame: FrameType | None, strict: bool) -> Signature:
    """Read a function that is to become a tool.

    Args:
        where: the function's name and place, for errors.
        kind: `staticmethod` or `classmethod`, where it was wrapped in one.
        frame: where the function was decorated; annotations that are strings may use its local names.
        strict: whether `"1"` is no number.

    Raises:
        ToolSchemaError: a parameter that JSON Schema cannot express.
    """
    parameters, context, is_method = _parameters(function, where, kind, frame)
    schema, decode = _schema_and_decoder(parameters, where, strict)
    text, descriptions = _read_docstring(written(function))
    for parameter in parameters:
        if about := parameter.description or descriptions.get(parameter.name):
            schema["properties"][parameter.name].setdefault("description", about)
    return Signature(text, schema, decode, context, is_method)


def context_parameter(function: Any) -> str | None:
    """Return the name of the parameter that is annotated `ToolContext`, if there is one."""
    found = [item.name for item in _signature(function).parameters.values() if _mentions_context(item.annotation)]
    return found[0] if found else None


def is_async(function: Any) -> bool:
    """Whether calling it gives an awaitable: `async def`, a partial of one, or an object with an async `__call__`."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def written(function: Any) -> Any:
    """Return the function that was written, below partials and wrappers."""
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.unwrap(function) if callable(function) else function


def where(function: Any, name: str) -> str:
    """Return `tool 'add' (app.py:12)`, for errors."""
    code = getattr(written(function), "__code__", None)
    place = f" ({code.co_filename}:{code.co_firstlineno})" if code else ""
    return f"tool {name or repr(function)!r}{place}"


@attrs.frozen
class _Parameter:
    name: str
    annotation: Any
    default: Any = inspect.Parameter.empty
    description: str | None = None


def _signature(function: Any) -> inspect.Signature:
    if sys.version_info >= (3, 14):  # annotations are evaluated on demand, and those under TYPE_CHECKING would raise
        from annotationlib import Format

        return inspect.signature(function, annotation_format=Format.FORWARDREF)
    return inspect.signature(function)


def _parameters(
    function: Any, where: str, kind: type | None, frame: FrameType | None
) -> tuple[list[_Parameter], str | None, bool]:
    """Return the parameters of the schema, the one that takes the context, and whether this is an unbound method."""
    try:
        found = list(_signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise ToolSchemaError(f"{where} has no signature to read; wrap it in a function that has one") from error
    is_method = kind is classmethod or (kind is None and _is_method(function, found))
    if is_method and kind is None and found[0].name == "cls":
        raise ToolError(f"{where} is a class method; write @tool above @classmethod")
    given = function.keywords if isinstance(function, functools.partial) else {}
    parameters, context = [], None
    for parameter in found[is_method:]:
        if parameter.name in given:
            continue
        _check_kind(parameter, where)
        annotation = parameter.annotation
        if not _mentions_context(annotation):
            annotation = _resolved(parameter, function, where, frame)
        if not _mentions_context(annotation):
            parameters.append(_parameter(parameter, annotation))
        elif context is None:
            context = parameter.name
        else:
            raise ToolSchemaError(f"{where}: {context!r} and {parameter.name!r} both ask for the ToolContext")
    return parameters, context, is_method


def _parameter(parameter: inspect.Parameter, annotation: Any) -> _Parameter:
    texts = [mark for mark in getattr(annotation, "__metadata__", ()) if isinstance(mark, str)]
    if parameter.default is None:
        annotation = typing.Optional[annotation]  # noqa: UP045  # special forms take no `|`
    return _Parameter(parameter.name, annotation, parameter.default, texts[0] if texts else None)


def _is_method(function: Any, found: list[inspect.Parameter]) -> bool:
    """Whether `function` stands in a class body; a decorator sees it before the class exists."""
    inside = getattr(function, "__qualname__", "").rpartition(".")[0]
    if not found or not inside or inside.endswith("<locals>") or inspect.ismethod(function):
        return False
    return found[0].name in ("self", "cls")


_KINDS: Mapping[Any, str] = {
    inspect.Parameter.VAR_POSITIONAL: "takes any number of values; take a list, such as `items: list[str]`",
    inspect.Parameter.VAR_KEYWORD: "takes any names; take a dict, such as `extra: dict[str, str]`",
    inspect.Parameter.POSITIONAL_ONLY: "is positional-only, but models name their arguments; remove the `/`",
}


def _check_kind(parameter: inspect.Parameter, where: str) -> None:
    problem = _KINDS.get(parameter.kind)
    if problem is None and parameter.annotation is inspect.Parameter.empty:
        problem = f"has no annotation; write `{parameter.name}: str` or what it is"
    if problem is not None:
        raise ToolSchemaError(f"{where}: parameter {parameter.name!r} {problem}")


def _mentions_context(annotation: Any) -> bool:
    """Whether it names `ToolContext`. Read from text too: under TYPE_CHECKING the class cannot be had."""
    if isinstance(annotation, str):
        return re.search(r"\bToolContext\b", annotation) is not None
    if isinstance(text := getattr(annotation, "__forward_arg__", None), str):
        return _mentions_context(text)
    if isinstance(annotation, type) and annotation.__name__ == "ToolContext":
        return True
    inner = (typing.get_origin(annotation), *typing.get_args(annotation))
    return any(_mentions_context(item) for item in inner if item is not None and not isinstance(item, str))


def _resolved(parameter: inspect.Parameter, function: Any, where: str, frame: FrameType | None) -> Any:
    """Return the annotation with its strings evaluated where the function was defined."""

    def holder() -> None: ...

    holder.__annotations__ = {parameter.name: parameter.annotation}
    target = written(function)
    names = getattr(target, "__globals__", None) or getattr(type(target).__call__, "__globals__", {})
    try:
        try:
            hints = typing.get_type_hints(holder, names, include_extras=True)
        except NameError:
            hints = typing.get_type_hints(holder, names, _local_names(target, frame), include_extras=True)
    except Exception as error:
        raise ToolSchemaError(
            f"{where}: parameter {parameter.name!r}: annotation {parameter.annotation!r} cannot be evaluated "
            f"({error}); import its names at run time, not under TYPE_CHECKING, and write the ToolContext by that name"
        ) from error
    return hints[parameter.name]


def _local_names(function: Any, frame: FrameType | None) -> dict[str, Any]:
    """Return the names that `function` saw where it was written, while the function around it is still running."""
    around = getattr(function, "__qualname__", "").rpartition(".<locals>.")[0]
    names: dict[str, Any] = {}
    while frame is not None:
        if frame.f_globals is getattr(function, "__globals__", None):
            names = {**frame.f_locals, **names}
            if frame.f_code.co_qualname == around:
                break
        frame = frame.f_back
    return names


def _schema_and_decoder(parameters: list[_Parameter], where: str, strict: bool) -> tuple[dict[str, Any], Decode]:
    if any(_needs_pydantic(parameter.annotation) for parameter in parameters):
        return _with_pydantic(parameters, where)
    try:
        return _with_msgspec(parameters, strict)
    except Exception as error:
        for parameter in parameters:
            _check_expressible(parameter, where)
        raise ToolSchemaError(f"{where}: {error}") from error


def _check_expressible(parameter: _Parameter, where: str) -> None:
    try:
        _with_msgspec([parameter], True)
    except Exception as error:
        problem = str(error).splitlines()[-1] if str(error).startswith("Generating") else str(error)
        alternative = next((text for sign, text in _ALTERNATIVES if sign in problem), _ALTERNATIVES[-1][1])
        raise ToolSchemaError(f"{where}: parameter {parameter.name!r}: {problem.rstrip('.')}; {alternative}") from error


_ALTERNATIVES = (
    ("more than one str-like", "take `str` and parse it in the function"),
    ("more than one dict-like", "take `dict[str, Any]`, or only the class"),
    ("more than one array-like", "take one `list[…]`"),
    ("dataclass or attrs", "take one class with optional fields, or msgspec.Struct classes with `tag=True`"),
    ("Struct", "give the msgspec.Struct classes a `tag`"),
    ("converter", "convert in the function, or take a dataclass without them"),
    (
        "",
        "take JSON's own types (str, int, float, bool, list[…], dict[str, …]), an Enum, a dataclass or an attrs class",
    ),
)


def _with_msgspec(parameters: list[_Parameter], strict: bool) -> tuple[dict[str, Any], Decode]:
    fields: list[Any] = []
    defaults: dict[str, JSON] = {}
    absent = False
    for parameter in parameters:
        _refuse_lost_features(parameter.annotation)
        annotation = parameter.annotation
        if parameter.default is inspect.Parameter.empty:
            fields.append((parameter.name, annotation))
            continue
        try:
            defaults[parameter.name] = to_plain(parameter.default)
        except CodecError:  # an object of the application: the function fills it in itself
            absent = True
            fields.append((parameter.name, annotation | msgspec.UnsetType, msgspec.UNSET))
        else:
            fields.append((parameter.name, annotation, _default(parameter.default)))
    struct = msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True)
    (root,), components = msgspec.json.schema_components([struct], ref_template="#/$defs/{name}")
    schema = dict(components.pop(root["$ref"].removeprefix("#/$defs/")))
    schema.pop("title", None)
    for name, default in defaults.items():
        schema["properties"][name]["default"] = default
    if components:
        schema["$defs"] = components
    read, asdict = msgspec.json.Decoder(struct, strict=strict).decode, msgspec.structs.asdict
    if absent:
        unset = msgspec.UNSET
        return schema, lambda text: {key: value for key, value in asdict(read(text)).items() if value is not unset}
    return schema, read


def _default(value: Any) -> Any:
    """Return a default for msgspec; one that can change is copied for each call, unlike Python's own."""
    if isinstance(value, list | dict | set | bytearray):
        return msgspec.field(default_factory=value.copy)
    return msgspec.field(default=value)


def _refuse_lost_features(annotation: Any) -> None:
    """msgspec fills attrs classes without calling their `__init__`: what only that does would be lost silently."""
    for cls in _classes(annotation):
        for field in attrs.fields(cls) if attrs.has(cls) else ():
            if field.converter is not None or not field.init or field.alias != field.name:
                raise TypeError(
                    f"{cls.__name__}.{field.name} has a converter, an alias or `init=False`, which get lost"
                )


def _classes(annotation: Any) -> Iterator[type]:
    """Yield the classes that an annotation is made of, those of their fields included, each once."""
    todo, seen = [annotation], set()
    while todo:
        item = todo.pop()
        todo.extend(typing.get_args(item))
        if not isinstance(item, type) or item in seen:
            continue
        seen.add(item)
        yield item
        if hasattr(item, "__attrs_attrs__") or hasattr(item, "__dataclass_fields__") or typing.is_typeddict(item):
            try:
                todo.extend(typing.get_type_hints(item, include_extras=True).values())
            except NameError:
                continue  # msgspec says it better


def _needs_pydantic(annotation: Any) -> bool:
    if "pydantic" not in sys.modules:
        return False
    marks = [mark for mark in getattr(annotation, "__metadata__", ()) if type(mark).__module__.startswith("pydantic")]
    return bool(marks) or any(
        hasattr(cls, "__pydantic_validator__") or hasattr(cls, "__get_pydantic_core_schema__")
        for cls in _classes(annotation)
    )


def _with_pydantic(parameters: list[_Parameter], where: str) -> tuple[dict[str, Any], Decode]:
    import pydantic
    from typing_extensions import TypedDict  # pydantic's; it refuses typing's before Python 3.12

    fields: dict[str, Any] = {}
    defaults: dict[str, Any] = {}
    for parameter in parameters:
        if type(parameter.default).__name__ == "FieldInfo":
            raise ToolSchemaError(
                f"{where}: parameter {parameter.name!r} has a Field as its default; write Annotated[…, Field(…)] = …"
            )
        fields[parameter.name] = parameter.annotation
        if parameter.default is not inspect.Parameter.empty:
            fields[parameter.name] = typing.NotRequired[parameter.annotation]
            defaults[parameter.name] = parameter.default
    arguments: Any = cast(Any, TypedDict)("Arguments", fields)
    arguments.__pydantic_config__ = pydantic.ConfigDict(extra="forbid", allow_inf_nan=False)
    try:
        adapter = pydantic.TypeAdapter(arguments)
        schema = adapter.json_schema()
    except pydantic.errors.PydanticUserError as error:
        raise ToolSchemaError(f"{where}: {error}") from error
    schema.pop("title", None)
    schema.setdefault("properties", {})
    for name, default in defaults.items():
        with contextlib.suppress(CodecError):
            schema["properties"][name].setdefault("default", to_plain(default))

    def read(text: str) -> Arguments:
        msgspec.json.decode(text)  # strict JSON: pydantic's reader takes NaN
        try:
            return {**copy.deepcopy(defaults), **adapter.validate_json(text)}
        except pydantic.ValidationError as error:
            raise ValueError(_pydantic_problems(error)) from error

    return schema, read


def _pydantic_problems(error: Any) -> str:
    problems = error.errors(include_url=False, include_input=False, include_context=False)
    return "; ".join(f"{item['msg']} - at `$.{'.'.join(map(str, item['loc']))}`" for item in problems[:5])


def read_annotation(annotation: Any, where: str) -> tuple[dict[str, Any], Decode]:
    """Return the JSON Schema of values of a type, and what makes one of JSON text.

    Raises:
        ToolSchemaError: JSON Schema cannot express it.
    """
    schema, decode = _schema_and_decoder([_Parameter("value", annotation)], where, True)
    defs = dict(schema.get("$defs", {}))
    root = dict(schema["properties"]["value"])
    if "$ref" in root and len(root) == 1:
        name = root["$ref"].removeprefix("#/$defs/")
        root = dict(defs[name])
        if f"'#/$defs/{name}'" not in str(defs):
            del defs[name]
    if defs:
        root["$defs"] = defs

    def read(text: str) -> Any:
        try:
            value = decode(f'{{"value":{text}}}')
        except Exception as error:
            raise ValueError(str(error).replace("$.value", "$")) from error
        return value["value"] if isinstance(value, dict) else value.value

    return root, read


def _read_docstring(function: Any) -> tuple[str, Mapping[str, str]]:
    """Return the docstring without its sections, and what it says of each parameter (Google, NumPy or Sphinx form)."""
    text = inspect.getdoc(function) or ""
    if not _SECTION.search(text):
        return text, {}
    import docstring_parser

    try:
        doc = docstring_parser.parse(text)
    except docstring_parser.ParseError:
        return text, {}
    about = {item.arg_name: item.description for item in doc.params if item.description}
    return (doc.description or "").strip(), about
