"""The configuration: sources and their order, origins, types, and errors that name the culprit."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from datetime import timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import attrs
import pytest

from agentx._config import Config, load_config
from agentx._config_edit import disable_plugin, enable_plugin
from agentx._configure import build, given_fields, rebuild, reserved_settings, values_of
from agentx._errors import ConfigError
from agentx._settings import Setting, Settings

if TYPE_CHECKING:
    from datetime import tzinfo as OnlyForCheckers

NO_USER = Path("/nowhere/agentx.toml")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in os.environ:
        if name.startswith("AGENTX"):
            monkeypatch.delenv(name)
    return tmp_path


def write(text: str, file: str = "agentx.toml") -> Path:
    path = Path(file)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def load(source: Any = None, **options: Any) -> Config:
    return load_config(source, **{"environ": {}, "user_file": NO_USER, **options})


def raw(config: Config, plugin_id: str, known: tuple[str, ...] = ("guard.budget",)) -> Mapping[str, Any]:
    return {".".join(keys): setting.value for keys, setting in config.settings(known)[plugin_id].items()}


def test_agentx_toml_of_the_working_directory_is_read() -> None:
    write(
        """
        [plugins]
        autoload = "listed"
        require = ["guard.budget>=0.1"]
        disable = ["observe.console", "memory.*"]
        presets = ["preset.coding"]
        strict = true
        order.model = ["observe.*", "guard.*"]

        [plugins.guard.budget]
        limit_usd = "5.00"
        """
    )
    config = load()
    assert config.autoload == Setting("listed", "agentx.toml [plugins]")
    assert config.strict.value is True
    assert [(entry.id, entry.specifier) for entry in config.require] == [("guard.budget", ">=0.1")]
    assert [entry.id for entry in config.disable] == ["observe.console", "memory.*"]
    assert [entry.id for entry in config.presets] == ["preset.coding"]
    assert config.order["model"].value == ("observe.*", "guard.*")
    assert config.settings([])["guard.budget"] == {
        ("limit_usd",): Setting("5.00", "agentx.toml [plugins.guard.budget]")
    }
    assert config.files == ("agentx.toml",)


def test_pyproject_is_read_where_there_is_no_agentx_toml() -> None:
    write("[tool.agentx.plugins.guard.budget]\nlimit_usd = 1\n", "pyproject.toml")
    assert raw(load(), "guard.budget") == {"limit_usd": 1}
    write("[plugins.guard.budget]\nlimit_usd = 2\n")
    assert raw(load(), "guard.budget") == {"limit_usd": 2}


def test_a_pyproject_of_somebody_else_and_no_file_at_all_are_no_configuration() -> None:
    write("[tool.black]\n", "pyproject.toml")
    assert load().files == ()


def test_parent_folders_are_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    write("[plugins]\nstrict = true\n")
    Path("inner").mkdir()
    monkeypatch.chdir("inner")
    assert load().files == ()


def test_config_may_be_a_file_a_folder_a_mapping_or_nothing() -> None:
    file = write("[plugins.guard.budget]\nx = 1\n", "other/agentx.toml")
    assert raw(load(file), "guard.budget") == {"x": 1}
    assert raw(load(Path("other")), "guard.budget") == {"x": 1}
    assert raw(load({"plugins": {"guard.budget": {"x": 2}}}), "guard.budget") == {"x": 2}
    assert raw(load({"guard.budget": {"x": 2}, "plugins": {"strict": True}}), "guard.budget") == {"x": 2}
    write("[plugins.guard.budget]\nx = 3\n")
    assert load(False, user_file=file).settings([]) == {}
    with pytest.raises(ConfigError, match=r"there is no configuration file gone\.toml"):
        load("gone.toml")


def test_later_sources_win_key_by_key_and_every_value_has_its_origin() -> None:
    user = write("[plugins.guard.budget]\na = 1\nb = 1\nc = 1\nd = 1\ne = 1\nf = 1\n", "user/agentx.toml")
    write(
        """
        [plugins.guard.budget]
        b = 2
        c = 2
        d = 2
        e = 2
        f = 2
        [agents.support.plugins.guard.budget]
        c = 3
        d = 3
        e = 3
        f = 3
        [agents.other.plugins.guard.budget]
        a = 99
        """
    )
    config = load(
        agent="support",
        user_file=user,
        environ={f"AGENTX__GUARD_BUDGET__{field}": "4" for field in "DEF"},
        code=[("code", {"plugins": {"guard": {"budget": {"e": 5, "f": 5}}}})],
        command_line=["guard.budget.f=6"],
    )
    settings = config.settings(["guard.budget"])["guard.budget"]
    assert {keys[0]: (setting.value, setting.origin) for keys, setting in settings.items()} == {
        "a": (1, "user/agentx.toml [plugins.guard.budget]"),
        "b": (2, "agentx.toml [plugins.guard.budget]"),
        "c": (3, "agentx.toml [agents.support.plugins.guard.budget]"),
        "d": ("4", "environment AGENTX__GUARD_BUDGET__D"),
        "e": (5, "code [plugins.guard.budget]"),
        "f": ("6", "command line"),
    }


def test_the_agents_section_of_the_users_file_counts_above_the_projects_general_tables() -> None:
    user = write("[agents.a.plugins.guard.budget]\nx = 1\n", "user/agentx.toml")
    write("[plugins.guard.budget]\nx = 2\n")
    assert raw(load(agent="a", user_file=user), "guard.budget") == {"x": 1}


def test_require_and_disable_add_up_over_all_sources() -> None:
    user = write('[plugins]\nrequire = ["guard.a"]\ndisable = ["memory.a"]\n', "user/agentx.toml")
    write('[plugins]\nrequire = ["guard.b"]\n[agents.x.plugins]\ndisable = ["memory.b"]\n')
    config = load(agent="x", user_file=user, code=[("code", {"plugins": {"disable": ["memory.c"]}})])
    assert [entry.id for entry in config.require] == ["guard.a", "guard.b"]
    assert [entry.id for entry in config.disable] == ["memory.a", "memory.b", "memory.c"]


def test_what_is_required_cannot_be_disabled_by_anybody() -> None:
    write('[plugins]\nrequire = ["guard.a"]\n')
    with pytest.raises(
        ConfigError,
        match=r"guard\.a is required by agentx\.toml \[plugins\] require and disabled by code \[plugins\] disable",
    ):
        load(code=[("code", {"plugins": {"disable": ["guard.*"]}})])


def test_instances_have_tables_of_their_own_and_inherit_nothing() -> None:
    write('[plugins.guard."budget#tenant"]\nx = 1\n[plugins.guard.budget]\ny = 2\n[plugins."guard.budget#b"]\nz = 3\n')
    settings = load().settings([])
    assert {name: [*table] for name, table in settings.items()} == {
        "guard.budget#tenant": [("x",)],
        "guard.budget": [("y",)],
        "guard.budget#b": [("z",)],
    }
    assert settings["guard.budget#tenant"]["x",].origin == 'agentx.toml [plugins.guard."budget#tenant"]'


def test_environment_variables_are_matched_against_the_ids_that_are_known() -> None:
    config = load(
        environ={
            "AGENTX__MY_KIND_LONG_NAME__THE_FIELD": "1",
            "AGENTX__GUARD_BUDGET_TENANT_1__RETRY__MAX": "2",
            "AGENTX_OTHER": "not ours",
        }
    )
    settings = config.settings(["my_kind.long_name", "guard.budget", "guard.budget#tenant-1"])
    assert settings == {
        "my_kind.long_name": {("the_field",): Setting("1", "environment AGENTX__MY_KIND_LONG_NAME__THE_FIELD", True)},
        "guard.budget#tenant-1": {
            ("retry", "max"): Setting("2", "environment AGENTX__GUARD_BUDGET_TENANT_1__RETRY__MAX", True)
        },
    }


@pytest.mark.parametrize(
    ("name", "known", "message"),
    [
        ("AGENTX__GUARD_BUGET__X", ["guard.budget"], "names no plugin.*did you mean 'GUARD_BUDGET'"),
        ("AGENTX__A_B_C__X", ["a.b_c", "a_b.c"], r"could mean a\.b_c or a_b\.c"),
        ("AGENTX__GUARD_BUDGET", ["guard.budget"], "is not AGENTX__<KIND>_<NAME>__<FIELD>"),
    ],
)
def test_an_environment_variable_that_means_nothing_or_two_things_is_refused(
    name: str, known: list[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=f"{name}.*{message}"):
        config = load(environ={name: "1"})
        config.settings(known)
        config.check_environment(known)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[plugin]\n", r"agentx\.toml has the unknown key 'plugin'; did you mean 'plugins'"),
        (
            "[plugins]\nrequires = []\n",
            r"agentx\.toml \[plugins\] has the unknown key 'requires'; did you mean 'require'",
        ),
        ("[plugins.ordre]\nmodel = []\n", r"\[plugins\.ordre\]: ordre\.model must be a table.*did you mean 'order'"),
        ("[plugins.guard]\nbudget = 5\n", r"guard\.budget must be a table of settings"),
        ("[plugins.guard.Budget]\n", r"'guard\.Budget' is no plugin id"),
        ("[plugins]\nrequire = 'guard.a'\n", r"\[plugins\]: require must be a list of texts"),
        ("[plugins]\nrequire = ['guard']\n", r"require: 'guard' is no plugin id"),
        ("[plugins]\nrequire = ['guard.a>>1']\n", r"require: 'guard\.a>>1'"),
        ("[plugins]\ndisable = ['*']\n", r"'\*' in disable is no plugin id"),
        ("[plugins]\npresets = ['preset.*']\n", r"in presets is no plugin id"),
        ("[plugins]\nstrict = 'yes'\n", r"strict must be a bool, not 'yes'"),
        ("[plugins]\norder.modle = []\n", r"order\.modle names no hook; did you mean 'model'"),
        ("[plugins]\norder.model = ['guard']\n", r"'guard' in order\.model is no id"),
        ("[plugins]\nautoload = 'al'\n", r"unknown autoload 'al' \(agentx\.toml \[plugins\]\); did you mean 'all'"),
        ("[plugins]\nautoload = 'locked'\n", r"'locked' .* is not there yet"),
        ("[agents.a]\nmodel = 'x'\n", r"\[agents\.a\] has the unknown key 'model'"),
        ("[agents.a.plugins]\nrequires = []\n", r"\[agents\.a\.plugins\] has the unknown key 'requires'"),
        ("agents = 5\n", r"\[agents\] must be a table"),
        ("[plugins\n", r"agentx\.toml cannot be read: "),
    ],
)
def test_a_wrong_file_is_refused_with_place_and_suggestion(text: str, message: str) -> None:
    write(text)
    with pytest.raises(ConfigError, match=message):
        load()


def test_autoload_is_said_by_code_before_environment_before_files_before_the_default() -> None:
    assert load().autoload == Setting("none", "pytest")
    write('[plugins]\nautoload = "listed"\n')
    assert load().autoload.value == "listed"
    assert load(environ={"AGENTX_AUTOLOAD": "all"}).autoload == Setting("all", "environment AGENTX_AUTOLOAD")
    assert load(environ={"AGENTX_AUTOLOAD": "all"}, autoload="none").autoload == Setting("none", "code")


def test_autoload_is_all_in_a_process_that_only_descends_from_pytest() -> None:
    code = "from agentx._config import load_config; print(load_config(False).autoload.value)"
    core = str(Path(__file__).parents[2] / "core")
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": core}, capture_output=True, text=True, check=True
    )
    assert done.stdout == "all\n"


class Color(Enum):
    RED = "red"
    BLUE = 2


@attrs.frozen
class Inner:
    max: int = 1
    rate: float = 0.5


class NotAPlugin:
    """The decorator alone makes fields; `build` takes any attrs class."""


@attrs.define(kw_only=True)
class Thing(NotAPlugin):
    id: ClassVar[str] = "guard.budget"
    number: int = 0
    ratio: float = 0.0
    flag: bool = False
    text: str = ""
    money: Decimal = Decimal("1.00")
    path: Path = Path()
    wait: timedelta = timedelta(0)
    mode: Literal["a", "b"] = "a"
    level: Literal[1, 2] = 1
    color: Color = Color.RED
    names: tuple[str, ...] = ()
    pair: tuple[int, str] = (0, "")
    maybe: int | None = None
    either: int | str = 0
    kinds: frozenset[int] = frozenset()
    table: Mapping[str, int] = attrs.field(factory=dict)
    inner: Inner = attrs.field(factory=Inner)
    inners: tuple[Inner, ...] = ()
    key: str = attrs.field(default="", metadata={"secret": True})
    odd: Color | Inner | None = None
    checker: OnlyForCheckers | None = None


def made(text: str = "", /, **environ: str) -> Thing:
    write(f"[plugins.guard.budget]\n{text}\n")
    config = load(environ={f"AGENTX__GUARD_BUDGET__{name.upper()}": value for name, value in environ.items()})
    thing = build("guard.budget", Thing, config.settings(["guard.budget"]).get("guard.budget", {}))
    assert isinstance(thing, Thing)
    return thing


@pytest.mark.parametrize(
    ("field", "toml", "text", "value"),
    [
        ("number", "5", "5", 5),
        ("ratio", "1", "1", 1.0),
        ("ratio", "0.25", "0.25", 0.25),
        ("flag", "true", "yes", True),
        ("flag", "false", "0", False),
        ("text", '"5"', "5", "5"),
        ("money", '"0.10"', "0.10", Decimal("0.10")),
        ("money", "0.1", "0.1", Decimal("0.1")),
        ("money", "3", "3", Decimal(3)),
        ("path", '"/x"', "/x", Path("/x")),
        ("wait", "1.5", "1.5", timedelta(seconds=1.5)),
        ("mode", '"b"', "b", "b"),
        ("level", "2", "2", 2),
        ("color", '"red"', "red", Color.RED),
        ("color", "2", "2", Color.BLUE),
        ("names", '["a", "b"]', "a, b", ("a", "b")),
        ("names", '["a,b"]', '["a,b"]', ("a,b",)),
        ("pair", '[1, "x"]', "1,x", (1, "x")),
        ("maybe", "3", "3", 3),
        ("either", '"x"', "x", "x"),
        ("either", "7", "7", 7),
        ("kinds", "[1, 2, 1]", "1,2", frozenset({1, 2})),
        ("table", "{a = 1}", '{"a": 1}', {"a": 1}),
        ("inner", "{max = 3}", '{"max": 3}', Inner(max=3)),
        ("inners", "[{max = 3}, {}]", '[{"max": 3}, {}]', (Inner(max=3), Inner())),
    ],
)
def test_values_become_the_type_of_their_field(field: str, toml: str, text: str, value: object) -> None:
    assert getattr(made(f"{field} = {toml}"), field) == value
    assert getattr(made(**{field: text}), field) == value


def test_an_empty_text_is_none_where_none_is_allowed() -> None:
    assert made("maybe = 4", maybe="").maybe is None


def test_nested_fields_merge_key_by_key() -> None:
    assert made("inner = {max = 3, rate = 1}", inner__max="9").inner == Inner(max=9, rate=1.0)


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ('number = "5"', r"number must be a whole number, not '5' \(agentx\.toml \[plugins\.guard\.budget\]\)"),
        ("number = true", "number must be a whole number, not True"),
        ("number = 1.0", "number must be a whole number"),
        ('ratio = "1"', "ratio must be a finite number"),
        ("ratio = inf", "ratio must be a finite number"),
        ("flag = 1", "flag must be true or false"),
        ("text = 5", "text must be a text, not 5"),
        ('money = "abc"', "money must be a decimal number, not 'abc'"),
        ("money = nan", "money must be a decimal number"),
        ('wait = "soon"', "wait must be a number of seconds"),
        ('mode = "c"', "mode must be one of 'a', 'b', not 'c'"),
        ("level = true", "level must be one of 1, 2, not True"),
        ('color = "green"', "color must be one of 'red', 2"),
        ('names = "abc"', "names must be a list, not 'abc'"),
        ("names = [1]", "names must be a text, not 1"),
        ("pair = [1]", "pair must be a list of 2"),
        ('maybe = "x"', "maybe must be a whole number, not 'x'"),
        ("either = 1.5", "either must be a whole number or a text, not 1.5"),
        ("inner = {max = 'x'}", r"inner\.max must be a whole number, not 'x'"),
        ("inner = {mx = 1}", "inner must be a table without the unknown key 'mx'; did you mean 'max'"),
        ("inner = 5", "inner must be a table, not 5"),
        ("inners = [{max = 'x'}]", r"inners.*must be a whole number, not 'x'"),
        ("nubmer = 5", "guard.budget has no setting 'nubmer' .*did you mean 'number'"),
        ("checker = 5", "the type .* of checker cannot be read at run time.*TYPE_CHECKING"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_plugin_field_origin_and_what_is_expected(
    toml: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=f"^guard.budget.*{message.removeprefix('guard.budget')}"):
        made(toml)


@pytest.mark.parametrize(
    ("field", "text"),
    [("number", "5x"), ("flag", "maybe"), ("ratio", "nan"), ("wait", ""), ("table", "{"), ("number", "")],
)
def test_a_text_that_cannot_be_parsed_is_refused_naming_the_variable(field: str, text: str) -> None:
    with pytest.raises(ConfigError, match=rf"{field} must be .*AGENTX__GUARD_BUDGET__{field.upper()}"):
        made(**{field: text})


def test_the_value_of_a_secret_field_is_not_shown() -> None:
    with pytest.raises(ConfigError, match="key must be a text, not the value given") as caught:
        made("key = 424242")
    assert "424242" not in str(caught.value)
    values = values_of(Thing(key="hush"), {}, {})
    assert str(values["key"]) == "***"
    assert "hush" not in repr(values["key"])


def test_what_a_validator_raises_names_plugin_and_origin_and_no_secret() -> None:
    @attrs.define(kw_only=True)
    class Strict:
        key: str = attrs.field(validator=attrs.validators.in_(["a"]), metadata={"secret": True})

    settings: Settings = {("key",): Setting("hush", "agentx.toml [plugins.guard.budget]")}
    with pytest.raises(ConfigError, match=r"guard\.budget: ValueError: .*agentx\.toml") as caught:
        build("guard.budget", Strict, settings)
    assert "hush" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"guard\.budget#x: key must be set in \[plugins\.guard\.\"budget#x\"\]"):
        build("guard.budget#x", Strict, {})


def test_reserved_settings_are_read_without_the_class() -> None:
    write(
        """
        [plugins.guard.budget]
        enabled = false
        phase.model = "verify"
        before = ["observe.*"]
        on_error = "open"
        limit = 5
        """
    )
    config = load(environ={"AGENTX__GUARD_BUDGET__ENABLED": "true", "AGENTX__GUARD_BUDGET__AFTER": "memory.a,memory.b"})
    reserved = reserved_settings("guard.budget", config.settings(["guard.budget"])["guard.budget"])
    assert (reserved.enabled, reserved.on_error, reserved.before) == (True, "open", ("observe.*",))
    assert reserved.after == ("memory.a", "memory.b")
    assert reserved.phases == {"model": "verify"}
    assert reserved.origins["enabled"] == "environment AGENTX__GUARD_BUDGET__ENABLED"


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("enabled = 1", "enabled must be true or false"),
        ('phase = "gates"', "phase must be one of 'observe', 'gate'"),
        ('phase.modle = "gate"', "phase.modle .* names no hook; did you mean 'model'"),
        ('before = ["guard"]', "'guard' in before .* is no id"),
        ('before = "guard.a"', "before must be a list"),
        ('on_error = "ignore"', "on_error must be one of 'open', 'closed'"),
    ],
)
def test_wrong_reserved_settings_are_refused(toml: str, message: str) -> None:
    write(f"[plugins.guard.budget]\n{toml}\n")
    with pytest.raises(ConfigError, match=f"guard.budget: {message}"):
        reserved_settings("guard.budget", load().settings([])["guard.budget"])


def test_an_instance_is_replaced_only_if_something_is_configured() -> None:
    thing = Thing(number=5, text="mine")
    assert rebuild(thing, "guard.budget", {}) is thing
    other = rebuild(thing, "guard.budget", {("number",): Setting(7, "agentx.toml")})
    assert (other.number, other.text) == (7, "mine")
    assert given_fields(thing) == {"number", "text"}
    values = values_of(other, {"text": "code"}, {("number",): Setting(7, "agentx.toml")})
    assert [(name, values[name].origin) for name in ("number", "text", "flag")] == [
        ("number", "agentx.toml"),
        ("text", "code"),
        ("flag", "default"),
    ]


def test_disabling_and_enabling_edit_the_file_and_keep_its_comments(folder: Path) -> None:
    text = "# mine\n[plugins]  # all of them\nstrict = true\n\n[plugins.guard.budget]\nlimit = 5  # dollars\n"
    file = write(text)
    assert disable_plugin("guard.budget") == file
    disabled = file.read_text()
    assert "# mine" in disabled
    assert "limit = 5  # dollars" in disabled
    assert load().is_disabled("guard.budget")
    disable_plugin("guard.budget")
    assert [entry.id for entry in load().disable] == ["guard.budget"]
    enable_plugin("guard.budget")
    assert load().is_disabled("guard.budget") is None
    assert [path.name for path in folder.iterdir()] == ["agentx.toml"]


def test_disabling_works_without_a_file_and_in_a_pyproject() -> None:
    assert disable_plugin("guard.budget") == Path("agentx.toml")
    assert load().is_disabled("guard.budget")
    Path("agentx.toml").unlink()
    file = write('[project]\nname = "x"\n[tool.agentx.plugins]\nautoload = "all"\n', "pyproject.toml")
    assert disable_plugin("guard.budget") == file
    assert load().is_disabled("guard.budget")


def test_enabling_undoes_every_way_of_disabling_that_the_file_has() -> None:
    write('[plugins]\nautoload = "listed"\ndisable = ["memory.a"]\n[plugins.memory.a]\nenabled = false\nx = 1\n')
    enable_plugin("memory.a")
    config = load()
    assert raw(config, "memory.a") == {"x": 1, "enabled": True}
    assert config.disable == ()


def test_a_required_plugin_cannot_be_disabled_and_a_pattern_is_not_taken_apart() -> None:
    write('[plugins]\nrequire = ["guard.a"]\ndisable = ["memory.*"]\n')
    with pytest.raises(ConfigError, match=r"guard\.a is required by agentx\.toml"):
        disable_plugin("guard.a")
    with pytest.raises(ConfigError, match=r"memory\.x is still disabled, by 'memory\.\*' in agentx\.toml"):
        enable_plugin("memory.x")
    with pytest.raises(ConfigError, match="'Budget' is no plugin id"):
        enable_plugin("Budget")
