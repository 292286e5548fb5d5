"""`@tool` from the signature to the parts of a result."""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import datetime
import enum
import functools
import inspect
import subprocess
import sys
import threading
import time
import typing
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional, TypedDict

import anyio
import anyio.lowlevel
import attrs
import msgspec
import pytest

from agentx._errors import AbortSignal, ToolError, ToolFailed, ToolSchemaError
from agentx._messages import FilePart, Part, TextPart, ToolResult, ToolSpec
from agentx._tools import Tool, ToolThreads, to_parts, tool, tools_of

if TYPE_CHECKING:
    from somewhere import Elsewhere  # type: ignore[import-not-found]

    from agentx._context import ToolContext

pytestmark = pytest.mark.anyio


Deps = typing.TypeVar("Deps")


class Unit(enum.Enum):
    CELSIUS = "c"
    KELVIN = "k"


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


@attrs.frozen
class Range:
    low: float
    high: float = 1.0


class Row(msgspec.Struct):
    key: str
    points: list[Point] = []


class Filter(TypedDict, total=False):
    field: typing.Required[str]
    limit: int


@attrs.frozen
class Converted:
    size: int = attrs.field(converter=int)


def schema_of(function: Callable[..., Any]) -> Mapping[str, Any]:
    return tool(function).schema["properties"]  # type: ignore[no-any-return]


def text_of(parts: tuple[Part, ...]) -> str:
    (part,) = parts
    assert isinstance(part, TextPart)
    return part.text


def refused(made: Tool, arguments: str) -> ToolFailed:
    with pytest.raises(ToolFailed) as caught:
        made.decode(arguments)
    assert caught.value.reason == "arguments"
    assert caught.value.tool == made.name
    return caught.value


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


class TestSchema:
    def test_a_signature_and_its_docstring_are_what_the_model_sees(self) -> None:
        @tool
        async def weather(city: str, days: int = 1, *, detail: bool = False) -> str:
            """Current weather in a city.

            In metric units.

            Args:
                city: its name,
                    in English
                days: how many

            Returns:
                what it is like
            """
            return city

        assert weather.spec == ToolSpec(
            name="weather",
            description="Current weather in a city.\n\nIn metric units.",
            schema={
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "its name,\nin English"},
                    "days": {"type": "integer", "default": 1, "description": "how many"},
                    "detail": {"type": "boolean", "default": False},
                },
                "required": ["city"],
                "additionalProperties": False,
            },
        )
        assert weather.spec is weather.spec

    def test_a_function_without_parameters_takes_an_empty_object(self) -> None:
        made = tool(lambda: 1, name="one")
        assert made.schema == {"type": "object", "properties": {}, "required": [], "additionalProperties": False}

    def test_every_type_that_json_schema_can_express_works(self) -> None:
        def search(
            text: str,
            ratio: float,
            tags: list[str],
            counts: dict[str, int],
            unit: Unit,
            mode: Literal["fast", "slow"],
            limit: int | None,
            where: Filter,
            at: Point,
            span: Range,
            rows: list[Row],
            when: datetime.datetime,
            day: datetime.date,
            id: uuid.UUID,
            price: Decimal,
            value: str | int | list[int],
            anything: Any,
            pair: tuple[int, str] = (1, "a"),
            maybe: Optional[Point] = None,  # noqa: UP045
        ) -> None: ...

        made = tool(search)
        assert made.schema["properties"]["unit"] == {"$ref": "#/$defs/Unit"}
        assert made.schema["$defs"]["Unit"]["enum"] == ["c", "k"]
        assert made.schema["properties"]["price"] == {"type": "string", "format": "decimal"}
        assert made.schema["properties"]["pair"]["default"] == [1, "a"]
        for reference in refs(made.schema):
            assert reference.removeprefix("#/$defs/") in made.schema["$defs"]
        args = made.decode(
            '{"text":"a","ratio":1,"tags":["b"],"counts":{"c":1},"unit":"k","mode":"fast","limit":null,'
            '"where":{"field":"f"},"at":{"x":1},"span":{"low":0.5},"rows":[{"key":"k","points":[{"x":2}]}],'
            '"when":"2024-02-29T01:02:03Z","day":"2024-02-29","id":"00000000-0000-0000-0000-000000000007",'
            '"price":"1.10","value":[1],"anything":{"a":[null]}}'
        )
        assert args["unit"] is Unit.KELVIN
        assert args["at"] == Point(1)
        assert args["span"] == Range(0.5)
        assert args["rows"] == [Row("k", [Point(2)])]
        assert args["price"] == Decimal("1.10")
        assert args["id"] == uuid.UUID(int=7)
        assert args["pair"] == (1, "a")
        assert args["maybe"] is None
        assert list(args) == list(inspect.signature(search).parameters)
        assert made.validate(args) == args
        assert made.validate(made.plain(args)) == args

    def test_descriptions_come_from_annotations_first(self) -> None:
        def find(
            a: Annotated[str, "from a string"],
            b: Annotated[int, msgspec.Meta(description="from Meta", ge=1)],
            c: Annotated[int | None, "optional"] = None,
        ) -> None:
            """Find.

            Args:
                a: from the docstring
                b: from the docstring
            """

        properties = schema_of(find)
        assert properties["a"]["description"] == "from a string"
        assert properties["b"] == {"description": "from Meta", "type": "integer", "minimum": 1}
        assert properties["c"]["description"] == "optional"

    @pytest.mark.parametrize(
        "doc",
        [
            "Find.\n\nParameters\n----------\nq : str\n    what to find\n",
            "Find.\n\n:param q: what to find\n",
            "Find.\n\nArgs:\n    q (str): what to find\n    unknown: dropped\n\nRaises:\n    ValueError: no\n",
        ],
    )
    def test_numpy_and_sphinx_docstrings_are_read_too(self, doc: str) -> None:
        def find(q: str) -> None: ...

        find.__doc__ = doc
        made = tool(find)
        assert made.description == "Find."
        assert made.schema["properties"]["q"]["description"] == "what to find"

    def test_a_default_of_none_makes_a_parameter_optional(self) -> None:
        def find(q: str = None) -> None: ...  # type: ignore[assignment]  # noqa: RUF013

        assert tool(find).decode('{"q":null}') == {"q": None}

    def test_a_mutable_default_is_not_shared_between_calls(self) -> None:
        def find(tags: list[str] = ["a"]) -> None: ...  # noqa: B006

        made = tool(find)
        made.decode("{}")["tags"].append("b")
        assert made.decode("{}") == {"tags": ["a"]}
        assert made.schema["properties"]["tags"]["default"] == ["a"]

    def test_a_default_that_is_no_json_is_left_to_the_function(self) -> None:
        missing = object()

        def find(q: str, scope: Any = missing, depth: float = float("inf")) -> bool:
            return scope is missing

        made = tool(find)
        assert made.decode('{"q":"a"}') == {"q": "a"}
        assert made.decode('{"q":"a","scope":1}') == {"q": "a", "scope": 1}
        assert "default" not in made.schema["properties"]["scope"]

    def test_local_types_are_found_behind_string_annotations(self) -> None:
        @dataclasses.dataclass
        class Local:
            x: int

        @tool
        def find(item: Local) -> None: ...

        class Owner:
            @tool
            def look(self, item: Local) -> None: ...

        assert find.decode('{"item":{"x":1}}') == {"item": Local(1)}
        assert Owner().look.decode('{"item":{"x":1}}') == {"item": Local(1)}

    def test_local_types_are_found_when_a_library_makes_the_tool(self) -> None:
        @dataclasses.dataclass
        class Local:
            x: int

        def find(item: Local) -> None: ...

        def library(functions: list[Callable[..., Any]]) -> list[Tool]:
            return [tool(function) for function in functions]

        (made,) = library([find])
        assert made.decode('{"item":{"x":1}}') == {"item": Local(1)}

    def test_recursive_types_work(self) -> None:
        def walk(tree: Tree) -> None: ...

        assert tool(walk).decode('{"tree":{"children":[{}]}}') == {"tree": Tree([Tree()])}

    def test_json_schema_is_json(self) -> None:
        def find(unit: Unit = Unit.KELVIN, at: Point = Point(1)) -> None: ...  # noqa: B008

        made = tool(find)
        assert msgspec.json.decode(msgspec.json.encode(made.schema)) == made.schema
        assert made.schema["properties"]["unit"]["default"] == "k"


@dataclasses.dataclass
class Tree:
    children: list[Tree] = dataclasses.field(default_factory=list)


def refs(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        if "$ref" in schema:
            yield schema["$ref"]
        for item in schema.values():
            yield from refs(item)
    elif isinstance(schema, list):
        for item in schema:
            yield from refs(item)


class TestDefinitionErrors:
    @pytest.mark.parametrize(
        ("function", "parameter", "alternative"),
        [
            (lambda x: 1, "x", "write `x: str`"),
            (lambda *items: 1, "items", r"items: list\[str\]"),
            (lambda **extra: 1, "extra", r"extra: dict\[str, str\]"),
            (lambda x, /: 1, "x", "remove the `/`"),
        ],
    )
    def test_kinds_of_parameters_that_models_cannot_fill(
        self, function: Callable[..., Any], parameter: str, alternative: str
    ) -> None:
        with pytest.raises(ToolSchemaError, match=rf"'broken' \(.*test_tools\.py:\d+\).*'{parameter}'.*{alternative}"):
            tool(function, name="broken")

    @pytest.mark.parametrize(
        ("annotation", "alternative"),
        [
            (Decimal | str, "take `str`"),
            (datetime.datetime | str, "take `str`"),
            (Point | Range, "tag=True"),
            (Point | dict[str, int], "take `dict"),
            (complex, "JSON's own types"),
            (Callable[[], int], "JSON's own types"),
            (type, "JSON's own types"),
            (object, "JSON's own types"),
            (Converted, "convert in the function"),
            (list[Converted], "convert in the function"),
            (5, "JSON's own types"),
        ],
    )
    def test_annotations_that_json_schema_cannot_express(self, annotation: Any, alternative: str) -> None:
        def broken(fine: int, bad: Any) -> None: ...

        broken.__annotations__["bad"] = annotation
        with pytest.raises(ToolSchemaError, match=rf"'broken' \(.*test_tools\.py:\d+\).*'bad'.*{alternative}"):
            tool(broken)

    def test_an_annotation_that_cannot_be_evaluated_says_why(self) -> None:
        def broken(item: Elsewhere) -> None: ...

        with pytest.raises(ToolSchemaError, match=r"'broken' .*'item'.*Elsewhere.*TYPE_CHECKING"):
            tool(broken)

    def test_names_that_models_do_not_take(self) -> None:
        def fine() -> None: ...

        for name in ("bad name", "a" * 65, "héllo", "a.b", "a\n"):
            with pytest.raises(ToolError, match=r"tool\(name='…'\)"):
                tool(fine, name=name)
        with pytest.raises(ToolError, match="name"):
            tool(lambda: 1)
        assert tool(fine, name="get-weather_2").name == "get-weather_2"

    def test_what_is_no_function(self) -> None:
        def rows() -> Iterator[int]:
            yield 1

        with pytest.raises(ToolError, match="is a class"):
            tool(Point)
        with pytest.raises(ToolError, match="is a tool already"):
            tool(add)
        with pytest.raises(ToolError, match="return a list"):
            tool(rows)
        with pytest.raises(ToolError, match="is no function"):
            tool("add")  # type: ignore[call-overload]
        with pytest.raises(ToolSchemaError, match="takes any number"):
            tool(print)
        with pytest.raises(ToolSchemaError, match="no signature"):
            tool(min)
        with pytest.raises(TypeError, match="retries"):
            tool(retries=3)  # type: ignore[call-overload]

    def test_a_timeout_is_a_time(self) -> None:
        for timeout in (0, -1, float("inf"), float("nan")):
            with pytest.raises(ToolError, match="timeout"):
                tool(name="one", timeout=timeout)(lambda: 1)

    def test_a_predicate_is_a_plain_function(self) -> None:
        async def risky(args: Mapping[str, Any]) -> bool:
            return True

        with pytest.raises(ToolError, match="plain function"):
            tool(name="one", requires_approval=risky)(lambda: 1)  # type: ignore[arg-type]

    def test_a_class_method_is_wrapped_outside(self) -> None:
        with pytest.raises(ToolError, match="above @classmethod"):

            class Owner:
                @tool
                def make(cls, q: str) -> None: ...


class TestContext:
    @pytest.mark.parametrize("annotation", ["ToolContext", "ToolContext[int]", "Optional[agentx.ToolContext]"])
    async def test_a_parameter_of_that_name_receives_the_context(self, annotation: str) -> None:
        def who(q: str, c: Any, unit: str = "k") -> str:
            return f"{q} {c} {unit}"

        who.__annotations__["c"] = annotation
        made = tool(who)
        assert list(made.schema["properties"]) == ["q", "unit"]
        assert text_of(await made.call(made.decode('{"q":"a"}'), "CTX")) == "a CTX k"

    async def test_under_type_checking_and_keyword_only(self) -> None:
        @tool
        async def who(q: str, *, ctx: ToolContext[int] | None = None) -> str:
            return f"{q} {ctx}"

        assert text_of(await who.call({"q": "a"}, "CTX")) == "a CTX"

    async def test_as_a_real_class(self) -> None:
        class ToolContext(typing.Generic[Deps]): ...

        def who(a: Any, b: Any) -> None: ...

        for annotation in (ToolContext, ToolContext[int], ToolContext | None, Annotated[ToolContext[int], "x"]):
            who.__annotations__ = {"a": annotation, "b": int}
            assert list(tool(who).schema["properties"]) == ["b"]

    def test_only_one_parameter_can(self) -> None:
        def who(a: ToolContext[int], b: ToolContext[int]) -> None: ...

        with pytest.raises(ToolSchemaError, match="'a' and 'b'"):
            tool(who)

    def test_the_model_cannot_send_it(self) -> None:
        def who(ctx: ToolContext[int]) -> None: ...

        assert "unknown field" in str(refused(tool(who), '{"ctx":1}'))


class TestArguments:
    @pytest.mark.parametrize("arguments", ["[1,2]", '"x"', "7", "null", "", '{"a":1', '{"a":NaN,"b":1}', "{'a':1}"])
    def test_what_is_no_object_is_refused_with_an_excerpt(self, arguments: str) -> None:
        assert arguments in str(refused(add, arguments))

    @pytest.mark.parametrize(
        ("arguments", "problem"),
        [
            ('{"a":"1","b":2}', r"Expected `int`, got `str` - at `$.a`"),
            ('{"a":1}', "missing required field `b`"),
            ('{"a":1,"b":2,"c":3}', "unknown field `c`"),
            ('{"a":1.5,"b":2}', "Expected `int`, got `float`"),
            ('{"a":Infinity,"b":1}', "malformed"),
            ('{"a":1,"b":2} and so on', "trailing characters"),
        ],
    )
    def test_the_message_says_what_and_where(self, arguments: str, problem: str) -> None:
        assert problem in str(refused(add, arguments))

    @pytest.mark.parametrize(
        "arguments",
        ['{"a":"' + "x" * 200_000, '{"' + "k" * 200_000 + '":1}', "[" * 200_000, '{"a":' * 50_000, "\0" * 200_000],
    )
    def test_garbage_of_200_kb_gives_a_short_message(self, arguments: str) -> None:
        assert len(str(refused(add, arguments))) < 1000

    def test_of_a_name_that_is_there_twice_the_last_wins(self) -> None:
        assert add.decode('{"a":1,"a":2,"b":3}') == {"a": 2, "b": 3}

    @pytest.mark.parametrize("arguments", ["", "  ", "null", "{}", " {}\n"])
    def test_nothing_means_no_arguments_where_none_is_required(self, arguments: str) -> None:
        @tool
        def now(zone: str = "UTC") -> None: ...

        assert now.decode(arguments) == {"zone": "UTC"}

    def test_lone_surrogates_are_replaced(self) -> None:
        @tool
        def say(text: str) -> None: ...

        assert say.decode('{"text":"a\\ud800b"}') == {"text": "a�b"}
        assert say.decode('{"text":"a\ud800b"}') == {"text": "a�b"}
        assert say.decode('{"text":"\\ud83d\\ude00 \\\\ud800"}') == {"text": "😀 \\ud800"}
        assert "NaN" in str(refused(say, '{"text":"\\ud800","x":NaN}'))

    def test_lenient_tools_take_numbers_as_text(self) -> None:
        assert tool(add.function, strict=False).decode('{"a":"1","b":2}') == {"a": 1, "b": 2}

    def test_replaced_arguments_are_validated_again(self) -> None:
        assert add.validate({"a": 1, "b": 2}) == {"a": 1, "b": 2}
        for args in ({"a": 1}, {"a": "x", "b": 1}, {"a": object(), "b": 1}, {"a": float("nan"), "b": 1}):
            with pytest.raises(ToolFailed) as caught:
                add.validate(args)
            assert caught.value.reason == "arguments"

    def test_validators_of_attrs_classes_run(self) -> None:
        @attrs.frozen
        class Positive:
            n: int = attrs.field(validator=attrs.validators.gt(0))

        def take(item: Any) -> None: ...

        take.__annotations__["item"] = Positive
        assert "must be > 0" in str(refused(tool(take), '{"item":{"n":0}}'))

    def test_arguments_as_json_values(self) -> None:
        @tool
        def pay(amount: Decimal, when: datetime.date, to: Point) -> None: ...

        args = pay.decode('{"amount":"1.10","when":"2024-02-29","to":{"x":1}}')
        assert pay.plain(args) == {"amount": "1.10", "when": "2024-02-29", "to": {"x": 1, "y": 0}}

    def test_arguments_nested_too_deeply_to_keep_are_refused(self) -> None:
        @tool
        def take(value: Any) -> None: ...

        with pytest.raises(ToolFailed):
            take.plain(take.decode('{"value":' + "[" * 900 + "]" * 900 + "}"))


class TestPydantic:
    def test_models_give_the_schema_and_validate(self) -> None:
        pydantic = pytest.importorskip("pydantic")

        class Order(pydantic.BaseModel):  # type: ignore[misc, name-defined]
            """An order."""

            sku: str = pydantic.Field(pattern="^[a-z]+$")
            count: int = 1

        def buy(order: Any, gift: Any = False, copy: Any = None) -> None:
            """Buy.

            Args:
                gift: wrap it
            """

        buy.__annotations__ = {
            "order": Order,
            "gift": bool,
            "copy": Annotated[list[Order], pydantic.Field(max_length=1)],
        }
        made = tool(buy)
        assert made.schema["required"] == ["order"]
        assert made.schema["additionalProperties"] is False
        assert made.schema["properties"]["gift"]["description"] == "wrap it"
        assert made.schema["properties"]["gift"]["default"] is False
        assert all(ref.removeprefix("#/$defs/") in made.schema["$defs"] for ref in refs(made.schema))
        args = made.decode('{"order":{"sku":"abc"}}')
        assert args == {"order": Order(sku="abc"), "gift": False, "copy": None}
        assert made.plain(args) == {"order": {"sku": "abc", "count": 1}, "gift": False, "copy": None}
        assert made.validate(args) == args
        assert "pattern" in str(refused(made, '{"order":{"sku":"A"}}'))
        assert "$.order.sku" in str(refused(made, '{"order":{"sku":"A"}}'))
        assert "$.x" in str(refused(made, '{"order":{"sku":"a"},"x":1}'))
        for bad in ("[]", "null", "", '{"order":{"sku":"a","count":NaN}}', '{"order"', "x" * 200_000):
            assert len(str(refused(made, bad))) < 1000

    def test_a_field_as_default_is_refused(self) -> None:
        pydantic = pytest.importorskip("pydantic")

        def buy(item: Any, n: int = pydantic.Field(3)) -> None: ...

        buy.__annotations__["item"] = pydantic.create_model("Item")
        with pytest.raises(ToolSchemaError, match="Annotated"):
            tool(buy)


class Shop:
    def __init__(self, name: str) -> None:
        self.name = name

    @tool
    async def find(self, q: str) -> str:
        """Find something."""
        return f"{self.name}: {q}"

    @tool(name="shout", parallel=False)
    def loud(self, q: str) -> str:
        return f"{self.name}: {q.upper()}"

    @tool
    @classmethod
    def kind(cls) -> str:
        return cls.__name__

    @tool
    @staticmethod
    def double(n: int) -> int:
        return n * 2

    @staticmethod
    @tool
    def triple(n: int) -> int:
        return n * 3

    def plain(self) -> None: ...


class Bakery(Shop):
    @tool
    async def bake(self) -> str:
        return f"{self.name} bakes"

    def loud(self, q: str) -> str:  # type: ignore[override]
        return "no tool any more"


class TestMethods:
    async def test_methods_are_bound_to_their_instance(self) -> None:
        a, b = Shop("a"), Shop("b")
        assert list(a.find.schema["properties"]) == ["q"]
        assert text_of(await a.find.call({"q": "x"})) == "a: x"
        assert text_of(await b.find.call({"q": "x"})) == "b: x"
        assert text_of(await b.loud.call({"q": "x"})) == "b: X"
        assert text_of(await a.kind.call({})) == "Shop"
        assert text_of(await Bakery("c").kind.call({})) == "Bakery"
        assert text_of(await a.double.call({"n": 2})) == "4"
        assert text_of(await Shop.triple.call({"n": 2})) == "6"
        assert await a.find("y") == "a: y"

    def test_binding_keeps_the_options_and_equality(self) -> None:
        shop = Shop("a")
        assert shop.loud.name == "shout"
        assert not shop.loud.parallel
        assert shop.find == shop.find
        assert shop.find != Shop("a").find
        assert len({shop.find, shop.find}) == 1

    def test_a_class_lists_its_tools(self) -> None:
        assert [made.name for made in tools_of(Shop("a"))] == ["find", "shout", "kind", "double", "triple"]
        assert [made.name for made in tools_of(Bakery)] == ["find", "kind", "double", "triple", "bake"]
        assert [made.unbound for made in tools_of(Bakery("a"))] == [False] * 5

    async def test_an_unbound_method_says_so(self) -> None:
        assert Shop.find.unbound
        with pytest.raises(ToolFailed, match="take it from an instance"):
            await Shop.find.call({"q": "x"})

    async def test_methods_of_attrs_classes_with_slots(self) -> None:
        @attrs.define
        class Slotted:
            name: str

            @tool
            def hello(self) -> str:
                return self.name

        assert text_of(await Slotted("a").hello.call({})) == "a"

    def test_renaming_a_tool(self) -> None:
        renamed = attrs.evolve(Shop("a").find, name="a_find")
        assert renamed.spec.name == "a_find"
        with pytest.raises(ToolError):
            attrs.evolve(renamed, name="a find")


class TestCall:
    async def test_callables_of_every_kind(self) -> None:
        class Adder:
            def __call__(self, a: int) -> int:
                return a + 1

        class AsyncAdder:
            async def __call__(self, a: int) -> int:
                return a + 2

        def power(base: int, exponent: int) -> int:
            return int(base**exponent)

        async def later(base: int, exponent: int) -> int:
            return base + exponent

        assert text_of(await tool(Adder(), name="adder").call({"a": 1})) == "2"
        assert text_of(await tool(AsyncAdder(), name="adder").call({"a": 1})) == "3"
        square = tool(functools.partial(power, exponent=2))
        assert square.name == "power"
        assert list(square.schema["properties"]) == ["base"]
        assert text_of(await square.call({"base": 3})) == "9"
        assert text_of(await tool(functools.partial(later, 5)).call({"exponent": 3})) == "8"
        with pytest.raises(ToolError, match="name"):
            tool(Adder())

    async def test_a_wrapped_function_keeps_its_signature_and_its_wrapper(self) -> None:
        def doubled(function: Callable[..., int]) -> Callable[..., int]:
            @functools.wraps(function)
            def wrapper(*args: Any, **kwargs: Any) -> int:
                return 2 * function(*args, **kwargs)

            return wrapper

        @tool
        @doubled
        def size(of: Point) -> int:
            """Size.

            Args:
                of: what
            """
            return of.x

        assert size.schema["properties"]["of"]["description"] == "what"
        assert text_of(await size.call(size.decode('{"of":{"x":3}}'))) == "6"

    async def test_a_coroutine_from_a_sync_function_is_awaited(self) -> None:
        async def later(a: int) -> int:
            await anyio.lowlevel.checkpoint()
            return a

        def now(a: int) -> Any:
            return later(a)

        assert text_of(await tool(now).call({"a": 3})) == "3"

    @pytest.mark.parametrize(
        ("value", "text"),
        [
            ("a\0\ud800", "a��"),
            (None, ""),
            (3, "3"),
            ([], "[]"),
            ({"at": Point(1), "unit": Unit.KELVIN}, '{"at":{"x":1,"y":0},"unit":"k"}'),
            (Decimal("1.10"), '"1.10"'),
            (Range(0.5), '{"low":0.5,"high":1.0}'),
            (datetime.date(2024, 2, 29), '"2024-02-29"'),
        ],
    )  # fmt: skip
    def test_values_become_text(self, value: Any, text: str) -> None:
        assert text_of(to_parts(value)) == text

    def test_parts_stay_parts(self) -> None:
        picture = FilePart("image/png", data=b"\0")
        assert to_parts(picture) == (picture,)
        assert to_parts(["look:", picture, TextPart("\0")]) == (TextPart("look:"), picture, TextPart("�"))

    @pytest.mark.parametrize(
        ("value", "problem"),
        [
            (ToolResult("c", "f"), "not a ToolResult"),
            ([TextPart("a"), ToolResult("c", "f")], "not a ToolResult"),
            ([TextPart("a"), 3], "holds a int"),
            (object(), "cannot be sent to the model: object cannot become JSON"),
            ({"a": float("nan")}, r"at \.a"),
        ],
    )
    async def test_values_that_cannot_be_sent_are_the_tools_failure(self, value: Any, problem: str) -> None:
        @tool
        async def give() -> Any:
            return value

        with pytest.raises(ToolFailed, match=problem) as caught:
            await give.call({})
        assert (caught.value.tool, caught.value.reason) == ("give", "error")

    @pytest.mark.parametrize("is_async", [True, False])
    @pytest.mark.parametrize(
        ("error", "reason", "message"),
        [
            (ValueError("no\0"), "error", "ValueError: no�"),
            (KeyError("x"), "error", "KeyError: 'x'"),
            (AssertionError(), "error", "AssertionError"),
            (StopIteration(1), "error", "StopIteration"),
            (StopAsyncIteration(), "error", "StopAsyncIteration"),
            (TimeoutError("socket"), "error", "TimeoutError: socket"),
            (SystemExit(3), "exit", "SystemExit: 3"),
            (ExceptionGroup("many", [OSError("disk")]), "error", "OSError: disk"),
            (RuntimeError("x" * 10_000), "error", "characters"),
        ],
    )
    async def test_what_a_tool_raises_is_its_failure(
        self, is_async: bool, error: BaseException, reason: str, message: str
    ) -> None:
        def fail() -> None:
            raise error

        async def fail_later() -> None:
            await anyio.lowlevel.checkpoint()
            raise error

        made = tool(fail_later if is_async else fail, name="fail")
        with pytest.raises(ToolFailed, match=message.split(":")[0]) as caught:
            await made.call({})
        assert (caught.value.tool, caught.value.reason) == ("fail", reason)
        assert message in str(caught.value)
        assert len(str(caught.value)) < 3000
        assert caught.value.__cause__ is error or isinstance(error, StopIteration)

    @pytest.mark.parametrize("error", [GeneratorExit(), asyncio.CancelledError()])
    async def test_a_thread_cannot_cancel_or_close_the_turn(self, error: BaseException) -> None:
        @tool
        def fail() -> None:
            raise error

        with pytest.raises(ToolFailed, match=type(error).__name__):
            await fail.call({})

    @pytest.mark.parametrize("anyio_backend", ["asyncio"])
    async def test_a_cancellation_that_nobody_asked_for_is_a_failure(self) -> None:
        @tool
        async def fail() -> None:
            future = asyncio.get_running_loop().create_future()
            future.cancel()
            await future

        with pytest.raises(ToolFailed, match="CancelledError"):
            await fail.call({})

    @pytest.mark.parametrize("is_async", [True, False])
    @pytest.mark.parametrize("error", [KeyboardInterrupt(), AbortSignal("stop"), ToolFailed("mine", reason="timeout")])
    async def test_signals_and_failures_pass_unchanged(self, is_async: bool, error: BaseException) -> None:
        def fail() -> None:
            raise error

        async def fail_later() -> None:
            raise error

        with pytest.raises(type(error)) as caught:
            await tool(fail_later if is_async else fail, name="fail").call({})
        assert caught.value is error

    async def test_cancellation_passes(self) -> None:
        @tool
        async def hang() -> None:
            await anyio.sleep_forever()

        with anyio.move_on_after(0.01) as scope:
            await hang.call({})
        assert scope.cancelled_caught

    @pytest.mark.parametrize("is_async", [True, False])
    async def test_a_tool_that_takes_too_long_fails(self, is_async: bool) -> None:
        release = threading.Event()

        def wait() -> None:
            release.wait(10)

        made = tool(anyio.sleep_forever if is_async else wait, name="slow", timeout=0.02)
        threads = ToolThreads()
        try:
            with pytest.raises(ToolFailed, match=r"longer than 0\.02 s") as caught:
                await made.call({}, None, threads)
            assert caught.value.reason == "timeout"
            assert threads.hung == ({} if is_async else {"slow": 1})
        finally:
            release.set()

    async def test_a_given_schema_is_passed_on_and_the_arguments_are_an_object(self) -> None:
        async def call(ctx: ToolContext[Any], **args: Any) -> str:
            return f"{ctx} {args}"

        schema = {"type": "object", "properties": {"from": {"type": "string"}}}
        made = Tool.from_schema(call, name="mcp_call", description="Remote.", schema=schema, timeout=3)
        assert made.spec == ToolSpec("mcp_call", "Remote.", schema)
        assert text_of(await made.call(made.decode('{"from":"x"}'), "CTX")) == "CTX {'from': 'x'}"
        refused(made, "[]")


variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


class TestThreads:
    async def test_a_sync_tool_runs_in_a_thread_with_the_callers_context(self) -> None:
        @tool
        def look() -> str:
            seen = variable.get()
            variable.set("changed inside")
            return f"{seen} {threading.current_thread() is threading.main_thread()}"

        variable.set("mine")
        threads = ToolThreads()
        assert text_of(await look.call({}, None, threads)) == "mine False"
        assert text_of(await look.call({}, None, threads)) == "mine False"
        assert variable.get() == "mine"

    async def test_the_loop_runs_on_while_a_sync_tool_waits(self) -> None:
        release = threading.Event()

        @tool
        def wait() -> str:
            return "ok" if release.wait(10) else "blocked"

        async with anyio.create_task_group() as group:
            group.start_soon(anyio.sleep, 0)
            group.start_soon(lambda: anyio.to_thread.run_sync(release.set))
            assert text_of(await wait.call({})) == "ok"

    async def test_a_sync_tool_may_run_an_event_loop_of_its_own(self) -> None:
        async def inner() -> int:
            await anyio.lowlevel.checkpoint()
            return 7

        @tool
        def nested() -> int:
            return anyio.run(inner)

        assert text_of(await nested.call({})) == "7"

    async def test_a_cancelled_call_starts_nothing(self) -> None:
        ran = []

        @tool
        def effect() -> None:
            ran.append(1)

        with anyio.CancelScope() as scope:
            scope.cancel()
            await effect.call({})
        assert ran == []

    async def test_threads_are_used_again(self) -> None:
        seen = set()
        threads = ToolThreads()
        for _ in range(20):
            seen.add(await threads.run("ident", threading.get_ident))
        assert len(seen) <= 2

    async def test_no_more_run_at_a_time_than_there_are_places(self) -> None:
        threads = ToolThreads(3)
        running, most = [0], [0]
        lock = threading.Lock()

        @tool
        def work(n: int) -> int:
            with lock:
                running[0] += 1
                most[0] = max(most[0], running[0])
            time.sleep(0.001)
            with lock:
                running[0] -= 1
            return n

        results = []

        async def one(n: int) -> None:
            results.append(text_of(await work.call({"n": n}, None, threads)))

        async with anyio.create_task_group() as group:
            for n in range(50):
                group.start_soon(one, n)
        assert most[0] <= 3
        assert sorted(results, key=int) == [str(n) for n in range(50)]
        assert threads.hung == {}

    async def test_a_hung_tool_keeps_its_place_and_is_named_when_places_run_out(self) -> None:
        threads = ToolThreads(2)
        release = threading.Event()

        @tool(timeout=0.02)
        def fetch() -> str:
            release.wait(10)
            return "too late"

        for _ in range(2):
            with pytest.raises(ToolFailed):
                await fetch.call({}, None, threads)
        assert threads.hung == {"fetch": 2}
        with pytest.raises(ToolFailed, match=r"'add' could not start: the 2 places.*hang: fetch ×2") as caught:
            await add.call({"a": 1, "b": 2}, None, threads)
        assert (caught.value.tool, caught.value.reason) == ("add", "limiter")
        release.set()
        with anyio.fail_after(5):
            while threads.hung:
                await anyio.sleep(0.001)
        assert text_of(await add.call({"a": 1, "b": 2}, None, threads)) == "3"

    async def test_a_call_waits_for_a_busy_place_only_so_long_when_another_hangs(self) -> None:
        threads = ToolThreads(2, patience=0.02)
        release, started = threading.Event(), threading.Event()
        hang = tool(lambda: release.wait(10), name="hang", timeout=0.01)
        busy = tool(lambda: started.set() or release.wait(10), name="busy")  # type: ignore[func-returns-value]
        with pytest.raises(ToolFailed):
            await hang.call({}, None, threads)
        async with anyio.create_task_group() as group:
            group.start_soon(busy.call, {}, None, threads)
            await anyio.to_thread.run_sync(started.wait)
            with pytest.raises(ToolFailed, match="hang: hang"):
                await add.call({"a": 1, "b": 2}, None, threads)
            release.set()

    async def test_a_call_waits_for_a_place_that_comes_free(self) -> None:
        threads = ToolThreads(1)
        release, started = threading.Event(), threading.Event()
        busy = tool(lambda: started.set() or release.wait(10), name="busy")  # type: ignore[func-returns-value]
        async with anyio.create_task_group() as group:
            group.start_soon(busy.call, {}, None, threads)
            await anyio.to_thread.run_sync(started.wait)
            with anyio.move_on_after(0.01) as impatient:
                await add.call({"a": 1, "b": 2}, None, threads)
            assert impatient.cancelled_caught
            group.start_soon(lambda: anyio.to_thread.run_sync(release.set))
            assert text_of(await add.call({"a": 1, "b": 2}, None, threads)) == "3"

    def test_places_are_shared_between_event_loops(self, anyio_backend_name: str) -> None:
        threads = ToolThreads(1)
        release = threading.Event()
        hang = tool(lambda: release.wait(10), name="hang", timeout=0.01)

        async def use(made: Tool, args: dict[str, Any]) -> tuple[Part, ...]:
            return await made.call(args, None, threads)

        with pytest.raises(ToolFailed, match="longer than"):
            anyio.run(use, hang, {}, backend=anyio_backend_name)
        with pytest.raises(ToolFailed, match="hang: hang"):
            anyio.run(use, add, {"a": 1, "b": 2}, backend=anyio_backend_name)
        release.set()
        deadline = time.monotonic() + 5
        while threads.hung and time.monotonic() < deadline:
            time.sleep(0.001)
        assert text_of(anyio.run(use, add, {"a": 1, "b": 2}, backend=anyio_backend_name)) == "3"

    async def test_a_late_coroutine_is_closed_and_not_warned_about(self) -> None:
        release, done = threading.Event(), threading.Event()

        async def never() -> None: ...

        def late() -> Any:
            release.wait(10)
            return never()

        threads = ToolThreads()
        with warnings.catch_warnings(record=True) as caught, pytest.raises(ToolFailed):
            await tool(late, timeout=0.01).call({}, None, threads)
        release.set()
        while threads.hung:
            await anyio.sleep(0.001)
        done.set()
        assert caught == []

    @pytest.mark.parametrize("ending", ["", "raise SystemExit(3)", "raise ValueError"])
    def test_a_hung_tool_does_not_hold_up_the_exit_of_the_process(self, anyio_backend_name: str, ending: str) -> None:
        program = f"""
import time, anyio
from agentx._tools import tool, ToolThreads
from agentx._errors import ToolFailed

@tool(timeout=0.05)
def hang() -> None:
    time.sleep(3600)

async def main():
    threads = ToolThreads()
    try:
        await hang.call({{}}, None, threads)
    except ToolFailed as error:
        print(error.reason, dict(threads.hung))
    {ending}

anyio.run(main, backend={anyio_backend_name!r})
"""
        run = subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            timeout=30,
        )
        assert run.stdout == "timeout {'hang': 1}\n"
        assert run.returncode == {"": 0, "raise SystemExit(3)": 3, "raise ValueError": 1}[ending]
        assert ("Traceback" in run.stderr) == (ending == "raise ValueError")


def test_options_are_kept() -> None:
    def risky(args: Mapping[str, Any]) -> bool:
        return bool(args["n"] > 1)

    @tool(timeout=2, parallel=False, idempotent=True, requires_approval=risky, deferred=True, description="Pay.")
    def pay(n: int) -> None:
        """Not this."""

    assert (pay.timeout, pay.parallel, pay.idempotent, pay.deferred) == (2, False, True, True)
    assert pay.requires_approval is risky
    assert pay.description == "Pay."
    assert pay(3) is None


def test_defining_tools_imports_nothing_heavy() -> None:
    code = (
        "import sys; from agentx._tools import tool\n"
        "@tool\ndef add(a: int) -> int: 'Add.'\n"
        "add.decode('{\"a\":1}'); print([m for m in ('pydantic', 'cattrs', 'docstring_parser') if m in sys.modules])"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": ":".join(sys.path)}, capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "[]"
