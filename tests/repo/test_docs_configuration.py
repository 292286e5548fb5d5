"""docs/reference/configuration.md has every key, every setting, every status and every way to autoload."""

from __future__ import annotations

from typing import get_args

from agentx._config import AUTOLOAD
from agentx._hookspecs import RESERVED_SETTINGS
from agentx._members import Status
from agentx._settings import GENERAL_KEYS

from ._pages import DOCS, code_in, first_cells, section

PAGE = DOCS / "reference" / "configuration.md"
NOT_YET = {"untrusted", "changed", "locked"}


def codes(heading: str) -> list[str]:
    return [code_in(cell) for cell in first_cells(section(PAGE, heading))]


def test_every_key_of_the_plugins_table_is_documented() -> None:
    """What may stand in [plugins] beside the tables of plugins."""
    assert sorted(codes("[plugins]")) == sorted(GENERAL_KEYS)


def test_the_settings_of_every_plugin_are_documented() -> None:
    """Those that the user has over any plugin, whatever its class."""
    assert codes("[plugins.kind.name]") == list(RESERVED_SETTINGS)


def test_every_way_to_autoload_is_documented() -> None:
    """The values of autoload, but for the one that is only reserved."""
    assert codes("autoload") == [value for value in AUTOLOAD if value not in NOT_YET]


def test_every_status_is_documented() -> None:
    """What `agentx plugins` may say of a plugin today."""
    assert codes("Failures") == [status for status in get_args(Status) if status not in NOT_YET]
