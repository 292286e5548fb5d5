"""What a plugin author writes: a class with hooks, fields as configuration, an attrs class as state."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Sequence
from copy import deepcopy
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, dataclass_transform, get_args, get_origin

import attrs

from ._errors import PluginError, StateError
from ._hookspecs import API, HOOKS, RESERVED_SETTINGS, HookOptions, Implementation, implementation
from ._tools import Tool

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    S = TypeVar("S", default=None)
else:
    from typing import TypeVar

    S = TypeVar("S")

_BETTER = {"enabled": "active", "phase": "stage", "before": "earlier", "after": "later", "on_error": "when_failing"}
_CONTAINERS = (list, dict, set)


def reduced(fn: Any, *, default: Any = attrs.NOTHING, factory: Any = None, secret: bool = False) -> Any:
    """Declare a state field whose updates are merged by `fn(old, value)` and not replaced."""
    return attrs.field(default=default, factory=factory, metadata={"reduce": fn, "secret": secret})


def state_field(*, default: Any = attrs.NOTHING, factory: Any = None, secret: bool = False) -> Any:
    """Declare a state field that is replaced; a `secret` one is not stored in the clear."""
    return attrs.field(default=default, factory=factory, metadata={"secret": secret})


class _Body(dict[str, Any]):
    """The namespace of a plugin's class body; it catches `@tool` where that name is already the class's own hook."""

    def __getitem__(self, name: str) -> Any:
        value = super().__getitem__(name)
        if name == "tool" and inspect.isfunction(value):
            return _own_tool_hook
        return value


def _own_tool_hook(*_: Any, **__: Any) -> Any:
    raise PluginError("@tool below a `tool` hook finds the hook and not the decorator: write @agentx.tool")


@dataclass_transform(kw_only_default=True, eq_default=False, field_specifiers=(attrs.field,))
class PluginMeta(type):
    """Makes every subclass of `Plugin` an attrs class with keyword-only fields, compared by identity."""

    @classmethod
    def __prepare__(mcs, name: str, bases: tuple[type, ...], /, **kwargs: Any) -> _Body:
        return _Body()

    def __new__(mcs, name: str, bases: tuple[type, ...], body: dict[str, Any], **kwargs: Any) -> PluginMeta:
        cls = super().__new__(mcs, name, bases, dict(body), **kwargs)
        _refuse_reserved_fields(cls)
        _copy_mutable_defaults(cls)
        attrs.define(
            cls, slots=False, kw_only=True, eq=False, on_setattr=attrs.setters.NO_OP, repr="__repr__" not in body
        )
        return cls

    def __call__(cls, *args: Any, **fields: Any) -> Any:
        plugin = super().__call__(*args, **fields)
        object.__setattr__(plugin, "_given", frozenset(fields))
        return plugin

    def __init__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any], **kwargs: Any) -> None:
        super().__init__(name, bases, body, **kwargs)
        cls._implementations: tuple[tuple[str, HookOptions], ...] = tuple(_implemented(cls))
        state = _state_class(cls)
        if state is not None:
            check_state_class(state, owner=name)
        cls.state_class = state


def _own_annotations(cls: type) -> dict[str, Any]:
    if sys.version_info >= (3, 14):
        import annotationlib

        return annotationlib.get_annotations(cls, format=annotationlib.Format.STRING)
    return inspect.get_annotations(cls)


def _refuse_reserved_fields(cls: type) -> None:
    for name, annotation in _own_annotations(cls).items():
        if "ClassVar" in str(annotation):
            continue
        if name in HOOKS:
            raise PluginError(f"{cls.__name__}.{name}: a field cannot be named like a hook; call it {name}_settings")
        if name in RESERVED_SETTINGS:
            fix = f"write `{name}: ClassVar = …` for the plugin's own {name}, or call the field {_BETTER[name]}"
            raise PluginError(f"{cls.__name__}.{name} is a setting that every plugin has: {fix}")
        if name in ("id", "api"):
            raise PluginError(f"{cls.__name__}.{name} must be a ClassVar: `{name}: ClassVar = …`")


def _copy_mutable_defaults(cls: type) -> None:
    """Give every instance a default of its own where the class body has a list, a dict or a set."""
    for name, annotation in _own_annotations(cls).items():
        default = cls.__dict__.get(name)
        if isinstance(default, _CONTAINERS) and "ClassVar" not in str(annotation):
            setattr(cls, name, attrs.Factory(partial(deepcopy, default)))


def _implemented(cls: type) -> Iterator[tuple[str, HookOptions]]:
    """Yield the names of the hook functions in the order they were written, base classes first."""
    names = dict.fromkeys(name for base in reversed(cls.__mro__) for name in base.__dict__)
    for name in names:
        function = inspect.getattr_static(cls, name)
        if name.startswith("__") or not callable(function) or isinstance(function, Tool | type):
            continue
        found = implementation(name, function, owner=getattr(cls, "id", "") or cls.__name__)
        if found is not None:
            yield name, found.options


def _state_class(cls: type) -> type | None:
    for base in cls.__mro__:
        for generic in base.__dict__.get("__orig_bases__", ()):
            if isinstance(getattr(generic, "__origin__", None), PluginMeta):
                (state,) = get_args(generic)
                if isinstance(state, type) and state is not type(None):
                    return state
    return None


def check_state_class(state: type, *, owner: str) -> None:
    """Refuse a state class that cannot be kept: its values must be immutable and have defaults.

    Raises:
        StateError: naming class, field and what to use instead.
    """
    if not attrs.has(state):
        raise StateError(f"{owner}: the state class {state.__name__} is no attrs class: decorate it @attrs.frozen")
    attrs.resolve_types(state)
    for field in attrs.fields(state):
        if field.default is attrs.NOTHING:
            raise StateError(f"{owner}: {state.__name__}.{field.name} needs a default, the value of a new session")
        for kind in _kinds(field.type):
            if kind in _CONTAINERS:
                better = {list: "tuple", dict: "a frozen mapping or a tuple of pairs", set: "frozenset"}[kind]
                raise StateError(f"{owner}: {state.__name__}.{field.name} is a {kind.__name__}; use {better}")
    _check_frozen(state, owner)


def _kinds(annotation: Any) -> Iterator[Any]:
    """Yield the classes that a type is made of."""
    yield get_origin(annotation) or annotation
    for argument in get_args(annotation):
        yield from _kinds(argument)


def _check_frozen(state: type, owner: str) -> None:
    fields = attrs.fields(state)
    if not fields:
        return
    value = state()
    try:
        setattr(value, fields[0].name, getattr(value, fields[0].name))
    except attrs.exceptions.FrozenInstanceError:
        return
    raise StateError(f"{owner}: the state class {state.__name__} is not frozen: decorate it @attrs.frozen")


class Plugin(Generic[S], metaclass=PluginMeta):
    """Base class of plugins. Annotated fields are the configuration, the type argument is the state class.

    Methods named like a hook are its layers; they are `async def hook(self, ctx, call_next)`. An instance may serve
    several agents and is immutable once it is registered: what changes belongs in the state.
    """

    id: ClassVar[str] = ""
    """`kind.name`, such as `guard.budget`."""
    phase: ClassVar[str | None] = None
    """Where its layers go; by default its kind decides. A `guard.*` must say."""
    before: ClassVar[Sequence[str]] = ()
    after: ClassVar[Sequence[str]] = ()
    requires: ClassVar[Sequence[str]] = ()
    """Ids that must be active too, with a version if it matters: `guard.budget>=0.2`."""
    conflicts: ClassVar[Sequence[str]] = ()
    provides: ClassVar[Sequence[Any]] = ()
    """Keys it provides with `ctx.provide` in `init` or `session`."""
    needs: ClassVar[Sequence[Any]] = ()
    """Keys it gets; whoever provides them goes outside of it."""
    api: ClassVar[int] = API
    """The number of the hook contract it was written for."""
    state_class: ClassVar[type | None] = None

    def __setattr__(self, name: str, value: Any) -> None:
        if self.__dict__.get("_sealed"):
            fix = "what changes belongs in the state (ctx.update), live objects in ctx.provide"
            raise PluginError(
                f"{self.id}: a registered plugin is immutable, {name} cannot be set: {fix}", plugin=self.id
            )
        super().__setattr__(name, value)

    def plugins(self) -> Sequence[Plugin[Any]]:
        """Return the plugins that this one stands for. A plugin that returns any is a preset."""
        return ()


def seal(plugin: Plugin[Any]) -> None:
    """Make a plugin immutable; done when it is registered."""
    object.__setattr__(plugin, "_sealed", True)


def implementations(plugin: Plugin[Any]) -> tuple[Implementation, ...]:
    """Return what a plugin implements, in the order it was written."""
    found = [implementation(name, getattr(plugin, name), owner=plugin.id) for name, _ in type(plugin)._implementations]
    return tuple([item for item in found if item is not None])


def plugin_tools(plugin: Plugin[Any]) -> tuple[Tool, ...]:
    """Return the tools a plugin's class declares with `@tool`, bound to the instance, in the order of writing."""
    names = dict.fromkeys(name for base in reversed(type(plugin).__mro__) for name in base.__dict__)
    return tuple([getattr(plugin, name) for name in names if isinstance(inspect.getattr_static(plugin, name), Tool)])
