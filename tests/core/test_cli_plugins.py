"""`agentx plugins`: the listing and what goes with it work whatever is installed and configured."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from ._cli import Cli, Done, plugin
from ._installed import install

RAISES = "raise SystemError('a plugin was imported')"
KEYS = ["position", "phase", "id", "distribution", "version", "hooks", "source", "status", "reason", "config", "tools"]
BROKEN = {
    "boom": "import sys\nprint('noise')\nprint('noise', file=sys.stderr)\nraise RuntimeError('boom [red]')",
    "dies": "import os\nos.write(2, b'fatal: out of luck\\n')\nos._exit(7)",
    "exits": "import sys\nsys.exit('bye')",
    "half": plugin("context.half") + "    def __attrs_post_init__(self): raise ValueError('half way')\n",
    "hangs": "import time\ntime.sleep(1000)",
    "imports": "import not_there",
    "killed": "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
    "noisy": "import os, sys\nprint('{noise')\nos.close(1)\n" + plugin("context.noisy"),
}


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path)


def install_all(cli: Cli) -> None:
    """Six ways to be broken, two that only make noise or come half, between two that work."""
    cli.install("good-a", "context.aaa = good_a:P", good_a=plugin("context.aaa"))
    for name, source in BROKEN.items():
        cli.install(name, f"context.{name} = {name}_module:P", **{f"{name}_module": source})
    cli.install("good-z", "context.zzz = good_z:P", good_z=plugin("context.zzz", hook="tool"))


def by_id(done: Done) -> dict[str, dict[str, Any]]:
    return {row["id"]: row for row in done.json}


def test_every_broken_plugin_is_a_row_and_the_others_work(cli: Cli) -> None:
    install_all(cli)
    done = cli("plugins", "--json", "--timeout", "3")
    rows = by_id(done)
    assert done.code == 0
    assert all(list(row) == KEYS for row in rows.values())
    working = {name for name, row in rows.items() if row["status"] == "enabled"}
    assert {"context.aaa", "context.zzz", "context.noisy"} <= working
    reasons = {name.partition(".")[2]: row["reason"] for name, row in rows.items() if row["status"] == "failed"}
    assert reasons.keys() & BROKEN.keys() == BROKEN.keys() - {"noisy"}
    assert reasons["boom"] == "RuntimeError: boom [red] (boom_module.py:4)"
    assert reasons["dies"] == "ended its process with exit code 7: fatal: out of luck"
    assert reasons["exits"] == "SystemExit: bye (exits_module.py:2)"
    assert "half way" in reasons["half"]
    assert reasons["hangs"] == "took longer than 3 s"
    assert reasons["imports"] == "no module named 'not_there' (imports_module.py:1)"
    assert reasons["killed"] == "ended its process by SIGKILL"
    assert all(row["distribution"] and row["version"] == "1.0" for name, row in rows.items() if "context" in name)


def test_the_table_has_the_columns_of_the_reference(cli: Cli) -> None:
    cli.install("good-a", "context.aaa = good_a:P", good_a=plugin("context.aaa"))
    cli.install("boom", "context.boom = boom:P", boom=BROKEN["boom"])
    done = cli("plugins", "-s", "context.aaa.limit=7")
    lines = [" ".join(line.split()) for line in done.out.splitlines()]
    assert lines[0] == "# phase plugin distribution hooks source status"
    assert any(line.endswith("prepare context.aaa good-a 1.0 model entry enabled limit=7") for line in lines)
    assert "- - context.boom boom 1.0 - entry FAILED RuntimeError: boom [red] (boom.py:4)" in lines
    assert "\x1b" not in done.out + done.err
    assert not any(line.endswith(" ") for line in done.out.splitlines())


def test_two_distributions_with_one_id_are_a_conflict_that_names_both(cli: Cli) -> None:
    for name in ("twin-a", "twin-b"):
        cli.install(name, f"context.twin = {name[-1]}_twin:P", **{f"{name[-1]}_twin": RAISES})
    row = by_id(cli("plugins", "--json"))["context.twin"]
    assert row["status"] == "conflict"
    assert "twin-a 1.0" in row["reason"] and "twin-b 1.0" in row["reason"]


def test_the_listing_does_not_depend_on_the_order_of_installation(tmp_path: Path) -> None:
    listings = []
    for number, names in enumerate((("aaa", "bbb", "ccc"), ("ccc", "aaa", "bbb"))):
        folder = tmp_path / str(number)
        folder.mkdir()
        cli = Cli(folder)
        for name in names:
            cli.install(name, f"context.{name} = m_{name}:P", **{f"m_{name}": plugin(f"context.{name}")})
        listings.append(cli("plugins", "--json").json)
    assert listings[0] == listings[1]


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("plugins", "--static", "--json"),
        ("plugins", "disable", "context.raises"),
        ("plugins", "enable", "context.raises"),
        ("plugins", "new", "context.mine"),
        ("run", "--help"),
    ],
)
def test_these_commands_import_no_plugin(cli: Cli, arguments: tuple[str, ...]) -> None:
    cli.install("raises", "context.raises = raises:P", raises="open('imported', 'w').close()\n" + RAISES)
    done = cli(*arguments)
    assert done.code == 0, done.err
    assert not (cli.folder / "imported").exists()
    assert done.err == ""


def test_help_imports_neither_the_agent_nor_anything_heavy(cli: Cli) -> None:
    script = cli.write(
        "watch.py",
        """
        import sys
        from agentx.cli._app import run
        run(["--help"])
        heavy = ["agentx._agent", "httpx", "msgspec", "anyio", "rich", "asyncio", "cattrs", "importlib.metadata"]
        print([name for name in heavy if name in sys.modules], file=sys.stderr)
        """,
    )
    import subprocess

    done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=cli.environment())
    assert done.stderr.strip() == "[]"


def test_disable_and_enable_edit_the_file_and_keep_its_comments(cli: Cli) -> None:
    cli.install("good-a", "context.aaa = good_a:P", good_a=plugin("context.aaa"))
    file = cli.write("agentx.toml", "# mine\n[plugins]\nautoload = 'all'  # everything\n")
    assert cli("plugins", "disable", "context.aaa").out == "context.aaa is disabled in agentx.toml\n"
    row = by_id(cli("plugins", "--json"))["context.aaa"]
    assert (row["status"], row["reason"]) == ("disabled", "disabled by agentx.toml [plugins] disable")
    assert cli("plugins", "enable", "context.aaa").code == 0
    assert by_id(cli("plugins", "--static", "--json"))["context.aaa"]["status"] == "enabled"
    assert "# mine" in file.read_text() and "# everything" in file.read_text()


def test_disabling_what_is_not_installed_says_so(cli: Cli) -> None:
    cli.install("good-a", "context.words = good_a:P", good_a=plugin("context.words"))
    done = cli("plugins", "disable", "context.wrods")
    assert done.code == 0
    assert "no installed plugin has the id context.wrods; did you mean 'context.words'?" in done.err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[plugins]\nx = [1\ny = 2\n", "agentx.toml cannot be read: "),
        (
            "[plugins]\ndisabel = ['context.aaa']\n",
            "agentx.toml [plugins] has the unknown key 'disabel'; did you mean 'disable'?",
        ),
    ],
)
def test_a_broken_configuration_is_named_and_the_listing_goes_on_without_it(cli: Cli, text: str, said: str) -> None:
    cli.install("good-a", "context.aaa = good_a:P", good_a=plugin("context.aaa"))
    cli.write("agentx.toml", text)
    done = cli("plugins", "--json")
    assert done.code == 3
    assert by_id(done)["context.aaa"]["status"] == "enabled"
    assert f"error[config]: {said}" in done.err
    assert cli("--help").code == 0
    switched = cli("plugins", "disable", "context.aaa")
    assert switched.code == 3
    assert said in switched.err
    assert "Traceback" not in switched.err


def test_a_broken_file_is_named_with_its_line(cli: Cli) -> None:
    cli.write("agentx.toml", "[plugins]\nx = = 1\n")
    assert "at line 2" in cli("plugins", "--static").err


def test_order_says_who_wraps_whom_and_why(cli: Cli) -> None:
    cli.install("one", "context.one = one_m:P", one_m=plugin("context.one"))
    cli.install("two", "context.two = two_m:P", two_m=plugin("context.two", phase="gate"))
    done = cli(
        "plugins", "order", "--hook", "model", "--no-plugins", "--plugin", "context.one", "--plugin", "context.two"
    )
    assert done.out.startswith("model: context.two > context.one > core\n")
    assert "phase gate is outside phase prepare" in done.out
    layers = cli("plugins", "order", "--json").json
    assert list(layers) == ["init", "session", "turn", "model", "tool"]
    ours = [layer["id"] for layer in layers["model"] if layer["id"].startswith("context.")]
    assert ours == ["context.two", "context.one"]


def test_why_compares_two_plugins_or_says_that_one_has_no_place(cli: Cli) -> None:
    cli.install("one", "context.one = one_m:P", one_m=plugin("context.one"))
    cli.install("two", "context.two = two_m:P", two_m=plugin("context.two", phase="gate"))
    cli.install("three", "context.three = three_m:P", three_m=plugin("context.three", hook="tool"))
    reasons = cli("plugins", "why", "context.one", "context.two", "--json").json
    assert [(one["hook"], one["kind"]) for one in reasons] == [("model", "phase")]
    assert "context.one is in phase prepare" in cli("plugins", "why", "context.one").out
    assert "no hook in common" in cli("plugins", "why", "context.one", "context.three").out
    missing = cli("plugins", "why", "context.four")
    assert missing.code == 4
    assert "neither installed nor used" in missing.err


def test_a_cycle_is_an_error_that_lists_its_edges_and_the_listing_still_works(cli: Cli) -> None:
    before = plugin("context.one").replace("limit: int = 3", "before: ClassVar = ('context.two',)")
    other = plugin("context.two").replace("limit: int = 3", "before: ClassVar = ('context.one',)")
    cli.install("one", "context.one = one_m:P", one_m=before)
    cli.install("two", "context.two = two_m:P", two_m=other)
    done = cli("plugins", "order")
    assert done.code == 4
    assert "context.one before context.two, declared by context.one" in done.err
    listing = cli("plugins")
    assert listing.code == 0
    assert "context.one" in listing.out
    assert "an agent would not start: " in listing.err


def test_check_fires_every_hook_and_names_what_does_not_run(cli: Cli) -> None:
    silent = plugin("context.deaf", hook="turn", body="ctx.stop('no')\n            return await call_next()")
    silent += "    async def tool(self, ctx, call_next):\n        return await call_next()\n"
    cli.install("good", "context.good = good_m:P", good_m=plugin("context.good", hook="tool"))
    cli.install("bad", "context.bad = bad_m:P", bad_m=plugin("context.bad", body="await call_next()"))
    cli.install("deaf", "context.deaf = deaf_m:P", deaf_m=silent)
    cli.install("dies", "context.dies = dies_m:P", dies_m=plugin("context.dies", body="import os; os._exit(3)"))
    names = [f"context.{name}" for name in ("good", "bad", "deaf", "dies", "gone")]
    done = cli("plugins", "check", *names, "--json")
    found = {one["id"].partition(".")[2]: one for one in done.json}
    assert done.code == 1
    assert found["good"]["ok"] and found["good"]["hooks"]["tool"] > 0
    assert "forgot to return" in found["bad"]["problems"][0]
    assert "the tool hook never ran" in found["deaf"]["problems"]
    assert "exit code 3" in found["dies"]["problems"][0]
    assert found["gone"]["status"] == "missing"


def test_check_of_a_good_plugin_leaves_with_0_and_says_how_often_it_ran(cli: Cli) -> None:
    cli.install("good", "context.good = good_m:P", good_m=plugin("context.good"))
    done = cli("plugins", "check", "context.good")
    assert done.code == 0
    assert done.out.startswith("ok      context.good  good 1.0\n        model ran ")


def test_a_new_plugin_passes_its_own_tests(cli: Cli) -> None:
    import subprocess

    done = cli("plugins", "new", "guard.words", "--json")
    folder = cli.folder / "agentx-guard-words"
    assert done.json["folder"] == "agentx-guard-words"
    assert {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} == {
        "pyproject.toml",
        "README.md",
        "agentx_guard_words/__init__.py",
        "agentx_guard_words/py.typed",
        "tests/test_guard_words.py",
    }
    install(folder, "agentx-guard-words", "guard.words = agentx_guard_words:Words")
    tests = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error"],
        cwd=folder,
        env={**cli.environment(), "PYTHONPATH": os.pathsep.join([str(folder), cli.environment()["PYTHONPATH"]])},
        capture_output=True,
        text=True,
    )
    assert tests.returncode == 0, tests.stdout + tests.stderr
    assert cli("plugins", "new", "guard.words").code == 2
    assert "is no plugin id such as 'guard.words'" in cli("plugins", "new", "Words").err


def test_a_command_of_a_plugin_is_one_of_agentx_and_is_not_imported_for_help(cli: Cli) -> None:
    source = "open('imported', 'w').close()\nimport click\n@click.command()\ndef command(): click.echo('did it')\n"
    cli.install("more", "[agentx.commands]\ndo-it = more:command\nbroken = nothing_there:command", more=source)
    shown = cli("--help")
    assert "do-it    (from more 1.0" in shown.out
    assert not (cli.folder / "imported").exists()
    assert cli("do-it").out == "did it\n"
    broken = cli("broken")
    assert broken.code == 4
    assert "no module named 'nothing_there'" in broken.err


def test_a_mistyped_command_gets_a_suggestion(cli: Cli) -> None:
    done = cli("plugin", "--json")
    assert done.code == 2
    assert "there is no command 'plugin'; did you mean 'plugins'?" in done.err


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")
@pytest.mark.parametrize("columns", [40, 80])
def test_no_line_is_wider_than_the_terminal_and_no_color_means_no_styles(cli: Cli, columns: int) -> None:
    cli.install("good-a", "context.aaa = good_a:P", good_a=plugin("context.aaa"))
    terminal = cli.terminal("plugins", columns=columns, NO_COLOR="1")
    assert terminal.leave() == 0
    assert "context.aaa" in terminal.plain
    assert "\x1b[1m" not in terminal.seen and "\x1b[3" not in terminal.seen
    table = terminal.plain[terminal.plain.index("context.aaa") :]
    if columns == 80:
        assert max(len(line) for line in table.splitlines()) <= columns
    else:
        assert "phase: prepare" in table


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")
def test_at_a_terminal_the_table_has_styles(cli: Cli) -> None:
    terminal = cli.terminal("plugins", "--static")
    assert terminal.leave() == 0
    assert "\x1b[1m" in terminal.seen
