"""The listing of plugins: from a child process, or from metadata alone; and how it looks on a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agentx._config import Config, load_config
from agentx._errors import ConfigError
from agentx._plugins import static_rows

from ._agents import Choice
from ._child import ChildError
from ._exits import Exit, describe
from ._screen import Cell, Column, count, note, out, print_error, print_table, styled
from ._waiting import ask_waiting

if TYPE_CHECKING:
    from rich.text import Text

LOADING = "loading plugins"
COLUMNS = (
    Column("#", style="dim"),
    Column("phase"),
    Column("plugin", style="bold"),
    Column("distribution", drop=2),
    Column("hooks", drop=1),
    Column("source", drop=3),
    Column("status"),
    Column(""),
)
EMPTY: Sequence[Any] = (None, "", [], "{}", "()")
"""Values that say nothing in a table."""
STYLES = {"enabled": "green", "disabled": "dim"}


def whole_listing(choice: Choice, limit: float) -> tuple[Mapping[str, Any], bool]:
    """Load the plugins in a child and return its answer, and whether the configuration is broken.

    Then it says so, and lists what there is without one.
    """
    try:
        return ask_waiting("rows", LOADING, choice, limit), False
    except ChildError as error:
        if error.exit_code != Exit.CONFIG:
            raise
        _tell_broken(error)
        return ask_waiting("rows", LOADING, choice, limit, ignore_config=True), True


def static_listing(choice: Choice) -> tuple[Mapping[str, Any], bool]:
    """Return what metadata and configuration say, and whether the configuration is broken. Imports no plugin."""
    try:
        config, broken = _config(choice), False
        rows = static_rows(config, used=choice.used())
    except ConfigError as error:
        _tell_broken(error)
        config, broken = load_config(False, environ={}), True
        rows = static_rows(config, used=choice.used())
    return {"rows": [row.to_json() for row in rows]}, broken


def _config(choice: Choice) -> Config:
    return load_config(choice.source, agent=choice.agent, autoload=choice.autoload, command_line=choice.settings)


def _tell_broken(error: Exception) -> None:
    print_error(describe(error))
    note("this is the list without any configuration:", "dim")


def show_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    if not rows:
        out().print(styled("no plugin is installed, and none is configured"))
        return
    print_table(COLUMNS, [_cells(row) for row in rows])
    lost = [row for row in rows if row["status"] not in STYLES]
    if lost:
        out().print(styled(f"\n{count(len(lost), 'plugin')} of {len(rows)} cannot be used", "red"))


def _cells(row: Mapping[str, Any]) -> list[Cell]:
    status, style = row["status"], STYLES.get(row["status"], "bold red")
    return [
        str(row["position"] or "-"),
        row["phase"] or "-",
        row["id"],
        " ".join(filter(None, (row["distribution"], row["version"]))) or "-",
        " ".join(row["hooks"]) or "-",
        row["source"],
        (status if status in STYLES else status.upper(), style),
        styled(row["reason"]) if row["reason"] else _settings(row["config"]),
    ]


def _settings(values: Mapping[str, Mapping[str, Any]]) -> Text:
    """Return what somebody set, else the defaults as far as one line has room."""
    set_values = {name: one for name, one in values.items() if one["origin"] != "default"}
    shown = set_values or {name: one for name, one in values.items() if one["value"] not in EMPTY}
    text = styled(" ".join([f"{name}={_shown(one)}" for name, one in shown.items()]), "" if set_values else "dim")
    if not set_values:
        text.no_wrap, text.overflow = True, "ellipsis"
    return text


def _shown(value: Mapping[str, Any]) -> str:
    plain = value["value"]
    return ",".join(plain) if isinstance(plain, list) else str(plain)


def show_order(hooks: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    for hook, layers in hooks.items():
        chain = " > ".join([*(layer["layer"] for layer in layers), "core"])
        out().print(styled(hook, "bold").append(f": {chain}", style="not bold"), soft_wrap=True)
        for layer in layers:
            line = f"{layer['position']:3}  {layer['phase']:8} {layer['layer']}"
            out().print(styled(line), soft_wrap=True)
            for reason in layer["reasons"]:
                out().print(styled(f"{'':14}{reason['text']}", "dim"), soft_wrap=True)
