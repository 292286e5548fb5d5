"""`agentx run`: prompt in, answer and exit code out."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ._cli import COMMAND, ECHO, Cli, plugin


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    cli = Cli(tmp_path)
    cli.models_and_tools()
    return cli


def test_the_answer_is_all_that_is_on_standard_output(cli: Cli) -> None:
    done = cli("run", "sum", "-m", "models:adds", "-t", "tools.py", "--no-plugins", "-v")
    assert (done.code, done.out) == (0, "The sum is 3.\n")
    assert done.err == "⚙ add(a=1, b=2) → 3\n"


def test_a_pipe_can_be_streamed_to(cli: Cli) -> None:
    done = cli("run", "sum", "-m", "models.py:adds", "-t", "tools:add", "--no-plugins", "--stream")
    assert done.out == "Let me see. \nThe sum is 3.\n"
    assert done.err == ""


def test_the_prompt_comes_from_arguments_and_from_standard_input(cli: Cli) -> None:
    assert cli("run", *ECHO, "two", "words").out == "two words\n"
    assert cli("run", *ECHO, stdin="from a pipe\n").out == "from a pipe\n"
    assert cli("run", *ECHO, "look at:", stdin="the text").out == "look at:\n\nthe text\n"
    assert cli("run", *ECHO, "before", "-", "after", stdin="between").out == "before\n\nbetween\n\nafter\n"


def test_a_pipe_that_stays_silent_does_not_hang_a_run_that_has_a_prompt(cli: Cli) -> None:
    process = subprocess.Popen(
        [*COMMAND, "run", *ECHO, "hello"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=cli.folder,
        env=cli.environment(),
    )
    assert process.stdout and process.stderr and process.stdin
    assert process.stdout.read() == b"hello\n"
    assert b"nothing on standard input" in process.stderr.read()
    process.stdin.close()
    process.stdout.close()
    process.stderr.close()
    assert process.wait() == 0


def test_no_prompt_is_a_mistake_of_usage(cli: Cli) -> None:
    done = cli("run", *ECHO)
    assert done.code == 2
    assert "error[usage]: there is no prompt" in done.err


@pytest.mark.parametrize(
    ("model", "code", "out", "said"),
    [
        ("cut", 12, "half\n", "truncated: "),
        ("refuses", 13, "no\n", "refused: "),
        ("silent", 14, "", "empty: "),
        ("fails", 5, "", "error[model-rate-limit]: too many requests"),
    ],
)
def test_the_exit_code_says_how_the_turn_ended(cli: Cli, model: str, code: int, out: str, said: str) -> None:
    done = cli("run", "hi", "-m", f"models:{model}", "--no-plugins")
    assert (done.code, done.out) == (code, out)
    assert done.err.startswith(said)
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        ('ctx.stop("enough")\n            return await call_next()', 10, "stopped by guard.mine: enough"),
        (
            'ctx.stop("used up", status="limit")\n            return await call_next()',
            11,
            "limit by guard.mine: used up",
        ),
        ('ctx.abort("never")', 16, "error[turn-aborted]: turn aborted by guard.mine: never"),
        ("await call_next()", 16, "guard.mine: HookError: guard.mine: the model hook forgot to return"),
    ],
)
def test_the_exit_code_says_what_a_plugin_did(cli: Cli, body: str, code: int, said: str) -> None:
    cli.install("mine", "guard.mine = mine:P", mine=plugin("guard.mine", phase="gate", body=body))
    done = cli("run", "hi", "-m", "models:chatty", "--no-plugins", "--plugin", "guard.mine")
    assert done.code == code
    assert said in done.err


def test_a_layer_that_breaks_the_contract_is_named(cli: Cli) -> None:
    cli.install("mine", "context.mine = mine:P", mine=plugin("context.mine", body="await call_next()"))
    done = cli("run", "hi", "-m", "models:chatty", "--no-plugins", "--plugin", "context.mine")
    assert done.code == 4
    assert "error[hook]: context.mine: the model hook forgot to return" in done.err


def test_json_has_every_event_as_a_line_and_a_result_at_the_end(cli: Cli) -> None:
    done = cli("run", "sum", "-m", "models:adds", "-t", "tools:add", "--no-plugins", "--json")
    kinds = [line["kind"] for line in done.lines]
    assert done.code == 0
    assert kinds[:3] == ["session.start", "turn.start", "user.input"]
    assert {"model.start", "text.delta", "model.end", "tool.call", "tool.start", "tool.result"} < {*kinds}
    assert kinds[-2:] == ["turn.end", "result"]
    result = done.lines[-1]
    assert (result["status"], result["text"], result["exit"]) == ("completed", "The sum is 3.", 0)
    assert result["usage"]["requests"] == 2


def test_what_plugins_and_tools_print_is_not_the_answer(cli: Cli) -> None:
    cli.install("mine", "context.mine = mine:P", mine="print('import')\n" + plugin("context.mine"))
    cli.write("loud.py", "def add(a: int, b: int) -> int:\n    print('noise')\n    return a + b\n")
    arguments = ("run", "x", "-m", "models:adds", "-t", "loud.py", "--no-plugins", "--plugin", "context.mine")
    done = cli(*arguments)
    assert (done.out, done.err) == ("The sum is 3.\n", "import\nnoise\n")
    assert cli(*arguments, "--json").lines[-1]["text"] == "The sum is 3."


def test_json_ends_with_a_result_also_when_the_model_fails(cli: Cli) -> None:
    done = cli("run", "hi", "-m", "models:fails", "--no-plugins", "--json")
    assert done.code == 5
    assert done.lines[-1]["error"]["code"] == "model-rate-limit"
    assert (done.lines[-1]["status"], done.lines[-1]["exit"]) == ("failed", 5)


def test_settings_of_the_command_line_reach_the_plugin(cli: Cli) -> None:
    body = 'ctx.stop(f"limit is {self.limit}")\n            return await call_next()'
    cli.install("mine", "guard.mine = mine:P", mine=plugin("guard.mine", phase="gate", body=body))
    cli.write("other.toml", "[plugins]\nautoload = 'none'\nrequire = ['guard.mine']\nguard.mine.limit = 5")
    base = ("run", "hi", "-m", "models:chatty", "--config", "other.toml")
    assert "limit is 5" in cli(*base).err
    assert "limit is 7" in cli(*base, "-s", "guard.mine.limit=7").err
    wrong = cli(*base, "-s", "guard.mine.limit=many")
    assert wrong.code == 4
    assert "guard.mine: limit must be a whole number, not 'many' (command line)" in wrong.err
    unknown = cli(*base, "-s", "limit=3", "--json")
    assert unknown.code == 3
    assert unknown.json["error"]["code"] == "config"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("-m", "nowhere/x"), 5, "error[model-provider]: no installed plugin serves the models of 'nowhere'"),
        (("-m", "name"), 2, "error[load]: model id 'name' is not 'provider/model'"),
        (("-m", "models:chaty"), 2, "there is no 'chaty' in models; did you mean 'chatty'?"),
        (("-m", "models:number"), 2, "models:number is no model"),
        (("-m", "models:chatty", "-t", "missing.py"), 2, "there is no file missing.py"),
        (("-m", "models:chatty", "-t", "tools:ad"), 2, "there is no 'ad' in tools; did you mean 'add'?"),
        (
            ("-m", "models:chatty", "-t", "raises.py"),
            2,
            "raises.py cannot be loaded: ValueError: at import (raises.py:1)",
        ),
        (("-m", "models:chatty", "-t", "models:number"), 6, "models:number is neither a function, nor a @tool"),
        ((), 5, "no model is chosen"),
        (("--modl", "x"), 2, "error[usage]: No such option"),
    ],
)
def test_a_mistake_is_one_message_that_names_it(cli: Cli, arguments: tuple[str, ...], code: int, said: str) -> None:
    cli.write("raises.py", "raise ValueError('at import')")
    done = cli("run", "hi", "--no-plugins", *arguments)
    assert done.code == code
    assert said in done.err.replace(f"{cli.folder}{os.sep}", "")
    assert "Traceback" not in done.err
    assert done.out == ""


def test_debug_shows_the_traceback_and_works_before_and_after_the_command(cli: Cli) -> None:
    cli.write("raises.py", "raise ValueError('at import')")
    arguments = ("run", "hi", *ECHO, "-t", "raises.py")
    assert "Traceback" in cli("--debug", *arguments).err
    assert "Traceback" in cli(*arguments, "--debug").err


def test_the_model_may_come_from_the_environment(cli: Cli) -> None:
    assert cli("run", "hi", "--no-plugins", AGENTX_MODEL="models:chatty").out == "You said hi.\n"


def test_a_reader_that_goes_away_is_no_error(cli: Cli) -> None:
    command = " ".join([*COMMAND, "run", *ECHO, "--stream"])
    script = f"yes | head -c 3000000 | {command} | head -1; echo ${{PIPESTATUS[2]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, cwd=cli.folder, env=cli.environment())
    assert done.stdout == "y\n141\n"
    assert done.stderr == ""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_turn_and_closes_what_is_open(cli: Cli, number: signal.Signals, code: int) -> None:
    body = "await call_next()\n            print('closed', flush=True)"
    cli.install("mine", "observe.mine = mine:P", mine=plugin("observe.mine", hook="init", phase="observe", body=body))
    process = subprocess.Popen(
        [*COMMAND, "run", "wait", "-m", "models:slow", "--no-plugins", "--plugin", "observe.mine", "--json"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cli.folder,
        env=cli.environment(),
    )
    assert process.stdout is not None
    while "model.start" not in process.stdout.readline():
        time.sleep(0)
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert process.returncode == code
    assert "closed" in err
    assert "Traceback" not in err
    if number == signal.SIGINT:
        assert '"kind":"turn.end"' in out
        assert '"status":"cancelled"' in out.splitlines()[-1]


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")
def test_at_a_terminal_text_is_streamed_and_cannot_steer_the_terminal(cli: Cli) -> None:
    terminal = cli.terminal("run", "hi", "-m", "models:steers", "--no-plugins")
    terminal.wait_for("text")
    assert terminal.leave() == 0
    assert "\x1b" not in terminal.seen
    assert "red �[31mtext" in terminal.seen
