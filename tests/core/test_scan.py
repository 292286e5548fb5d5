"""Discovery finds what importlib.metadata finds, without importing it or anything else."""

from __future__ import annotations

import importlib.metadata
import random
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentx._scan import GROUPS, PLUGINS, Found, Scan, editable_location, load, scan

from ._installed import install


@pytest.fixture(autouse=True)
def _modules_are_forgotten() -> Iterator[None]:
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def as_importlib_sees_it(*paths: Path) -> set[tuple[str, str, str]]:
    seen: set[str] = set()
    found = set()
    for one in importlib.metadata.distributions(path=[str(path) for path in paths]):
        name = one.metadata["Name"].lower().replace("_", "-")
        if name not in seen:
            seen.add(name)
            found |= {(ep.group, ep.name, ep.value) for ep in one.entry_points if ep.group in GROUPS}
    return found


def as_we_see_it(*paths: Path) -> set[tuple[str, str, str]]:
    return {(one.group, one.name, one.value) for one in scan([str(path) for path in paths]).found}


def names(found: Scan) -> list[str]:
    return [one.name for one in found.found]


def test_every_group_is_found_with_distribution_and_version(tmp_path: Path) -> None:
    folder = install(
        tmp_path,
        "agentx-guard-budget",
        """
        # a comment
        [console_scripts]
        budget = budget:main
        [agentx.plugins]
        guard.budget=budget : Budget [extra]
        [agentx.models]
        local = budget.local
        [agentx.other]
        x = y
        """,
        version="0.1.0",
    )
    found = scan([str(tmp_path)])
    assert found.found == (
        Found("agentx.models", "local", "budget.local", "agentx-guard-budget", "0.1.0", str(folder)),
        Found("agentx.plugins", "guard.budget", "budget : Budget [extra]", "agentx-guard-budget", "0.1.0", str(folder)),
    )
    assert not found.problems
    assert set(found.group(PLUGINS)) == {"guard.budget"}
    assert as_we_see_it(tmp_path) == as_importlib_sees_it(tmp_path)


def test_what_is_found_in_this_environment_is_what_importlib_finds() -> None:
    found = [importlib.metadata.entry_points(group=group) for group in GROUPS]
    expected = {(ep.group, ep.name, ep.value) for group in found for ep in group}
    assert {(one.group, one.name, one.value) for one in scan().found} == expected


def test_the_first_distribution_of_a_name_on_the_path_wins(tmp_path: Path) -> None:
    new, old = tmp_path / "new", tmp_path / "old"
    install(new, "guard-x", "guard.x = new:X", version="2.0")
    install(old, "Guard_X", "guard.x = old:X", version="1.0")
    assert [one.version for one in scan([str(new), str(old)]).found] == ["2.0"]
    assert [one.version for one in scan([str(old), str(new)]).found] == ["1.0"]
    assert as_we_see_it(new, old) == as_importlib_sees_it(new, old)


def test_the_same_metadata_by_a_link_counts_once(tmp_path: Path) -> None:
    install(tmp_path / "lib", "guard-x", "guard.x = x:X")
    (tmp_path / "lib64").symlink_to(tmp_path / "lib")
    found = scan([str(tmp_path / "lib64"), str(tmp_path / "lib"), str(tmp_path / "lib64")])
    assert names(found) == ["guard.x"]
    assert not found.problems


def test_an_egg_info_beside_a_dist_info_counts_once(tmp_path: Path) -> None:
    install(tmp_path, "guard-x", "guard.x = x:X", kind="egg-info")
    dist_info = install(tmp_path, "guard-x", "guard.x = x:X", kind="dist-info")
    (only,) = scan([str(tmp_path)]).found
    assert only.location == str(dist_info)


def test_an_empty_left_over_does_not_hide_the_distribution(tmp_path: Path) -> None:
    install(tmp_path / "a", "guard-x", version="1.0", metadata=False)
    install(tmp_path / "a", "guard-x", "guard.x = x:X", version="2.0")
    install(tmp_path / "b", "guard-x", version="3.0", metadata=False)
    assert [one.version for one in scan([str(tmp_path / "b"), str(tmp_path / "a")]).found] == ["2.0"]


def test_of_two_complete_metadata_folders_in_one_place_the_newer_counts(tmp_path: Path) -> None:
    install(tmp_path, "guard-x", "guard.x = x:X", version="1.9")
    install(tmp_path, "guard-x", "guard.x = x:X", version="1.10")
    assert [one.version for one in scan([str(tmp_path)]).found] == ["1.10"]


def test_a_develop_install_says_its_version_in_the_metadata(tmp_path: Path) -> None:
    install(tmp_path, "guard-x", "guard.x = x:X", kind="develop", version="0.3.dev1")
    (only,) = scan([str(tmp_path)]).found
    assert (only.distribution, only.version) == ("guard-x", "0.3.dev1")


def test_a_file_as_egg_info_and_a_path_that_is_not_there_are_no_trouble(tmp_path: Path) -> None:
    (tmp_path / "old-1.0.egg-info").write_text("Name: old\n")
    assert scan([str(tmp_path), str(tmp_path / "gone"), str(tmp_path)]) == Scan()


def test_two_distributions_with_one_id_are_both_named_and_neither_is_found(tmp_path: Path) -> None:
    install(tmp_path / "a", "guard-a", "guard.budget = a:A\nguard.other = a:B")
    install(tmp_path / "b", "guard-b", "guard.budget = b:B")
    forward, backward = (
        scan([str(tmp_path / "a"), str(tmp_path / "b")]),
        scan([str(tmp_path / "b"), str(tmp_path / "a")]),
    )
    assert forward == backward
    assert names(forward) == ["guard.other"]
    problem = forward.problem(PLUGINS, "guard.budget")
    assert problem is not None
    assert problem.kind == "conflict"
    assert [claim.distribution for claim in problem.claims] == ["guard-a", "guard-b"]
    assert "guard-a 1.0" in problem.reason
    assert "guard-b 1.0" in problem.reason


def test_one_name_in_two_groups_is_no_conflict(tmp_path: Path) -> None:
    install(tmp_path, "both", "[agentx.models]\nlocal = m\n[agentx.stores]\nlocal = s")
    assert names(scan([str(tmp_path)])) == ["local", "local"]


def test_a_name_that_is_no_id_is_a_problem_naming_the_distribution(tmp_path: Path) -> None:
    install(tmp_path, "acme", "Budget = x:X")
    (problem,) = scan([str(tmp_path)]).problems
    assert problem.kind == "invalid"
    assert problem.claims[0].distribution == "acme"
    assert "'Budget' is no plugin id" in problem.reason


@pytest.mark.parametrize("content", [b"[agentx.plugins]\nguard.x\n", b"[agentx.plugins]\nguard.x = \xff\xfe\n"])
def test_broken_metadata_is_a_problem_and_the_rest_is_found(tmp_path: Path, content: bytes) -> None:
    (install(tmp_path, "acme") / "entry_points.txt").write_bytes(content)
    install(tmp_path, "good", "guard.good = x:X")
    found = scan([str(tmp_path)])
    assert names(found) == ["guard.good"]
    assert [(problem.kind, problem.name) for problem in found.problems] == [("broken", "acme")]


def test_zips_and_foreign_finders_are_read_through_importlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "plugins.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("guard_x-1.0.dist-info/METADATA", "Name: guard-x\nVersion: 1.0\n")
        file.writestr("guard_x-1.0.dist-info/entry_points.txt", "[agentx.plugins]\nguard.x = x:X\n")
    assert [(one.distribution, one.version) for one in scan([str(archive)]).found] == [("guard-x", "1.0")]

    class Finder(importlib.metadata.DistributionFinder):
        def find_spec(self, *_: object) -> ModuleSpec | None:
            return None

        def find_distributions(self, context: object = None) -> Iterator[importlib.metadata.Distribution]:
            yield importlib.metadata.PathDistribution(install(tmp_path / "hidden", "guard-y", "guard.y = y:Y"))

    monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])
    assert "guard.y" in names(scan([]))


def test_a_scan_imports_neither_importlib_metadata_nor_a_plugin(tmp_path: Path) -> None:
    install(tmp_path, "boom", "guard.boom = boom:Boom", boom="raise RuntimeError")
    code = f"""
import sys
sys.path = [path for path in sys.path if not path.endswith(".zip")] + [{str(tmp_path)!r}]
from agentx._scan import scan
assert any(one.name == "guard.boom" for one in scan().found)
assert "boom" not in sys.modules
loaded = [name for name in ("importlib.metadata", "pathlib", "packaging", "json") if name in sys.modules]
print(loaded)
"""
    core = Path(__file__).parents[2] / "core"
    done = subprocess.run(
        [sys.executable, "-Ic", f"import sys; sys.path.insert(0, {str(core)!r})\n{code}"],
        capture_output=True,
        text=True,
    )
    assert "importlib.metadata" not in done.stdout, done.stdout
    assert done.returncode == 0, done.stderr


def test_loading_returns_what_the_entry_point_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(
        tmp_path, "good", "guard.a = good_one:Box.inner\nguard.b = good_one", good_one="class Box:\n    inner = 42\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    inner, module = [load(one) for one in scan([str(tmp_path)]).found]
    assert (inner.value, inner.failure) == (42, None)
    assert module.value.__name__ == "good_one"


def failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, value: str = "bad_one:X") -> str:
    install(tmp_path, "bad", f"guard.bad = {value}", bad_one=source)
    monkeypatch.syspath_prepend(str(tmp_path))
    (only,) = scan([str(tmp_path)]).found
    loaded = load(only)
    assert loaded.failure is not None
    return loaded.failure.reason


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("\nimport torch_that_is_not_there\n", "no module named 'torch_that_is_not_there' (bad_one.py:2)"),
        ("raise RuntimeError('boom\\nbang')\n", "RuntimeError: boom bang (bad_one.py:1)"),
        ("import sys\n\nsys.exit(3)\n", "SystemExit: 3 (bad_one.py:3)"),
        ("def broken(:\n", "SyntaxError: invalid syntax (bad_one.py, line 1) (bad_one.py:1)"),
        ("import json\njson.loads('{')\n", "(bad_one.py:2)"),
        ("import pytest\npytest.skip('no', allow_module_level=True)\n", "Skipped: no (bad_one.py:2)"),
        ("", "AttributeError: module 'bad_one' has no attribute 'X'"),
    ],
)
def test_a_failing_import_says_in_one_line_what_happened_and_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, reason: str
) -> None:
    found = failure(tmp_path, monkeypatch, source)
    assert reason in found
    assert "\n" not in found


def test_a_module_that_was_deleted_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert failure(tmp_path, monkeypatch, "", "gone_one:X") == "no module named 'gone_one'"


def test_a_value_that_is_no_reference_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "is not 'module' or 'module:name'" in failure(tmp_path, monkeypatch, "", "a b c")


def test_ctrl_c_during_an_import_is_not_eaten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyboardInterrupt):
        failure(tmp_path, monkeypatch, "raise KeyboardInterrupt")


def test_an_editable_install_says_where_it_lives(tmp_path: Path) -> None:
    folder = install(tmp_path, "mine", "guard.mine = mine:X")
    (only,) = scan([str(tmp_path)]).found
    assert editable_location(only) is None
    (folder / "direct_url.json").write_text('{"url": "file:///home/me/my%20plugin", "dir_info": {"editable": true}}')
    assert editable_location(only) == "/home/me/my plugin"


@given(order=st.permutations(range(5)), chance=st.randoms())
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_what_is_found_does_not_depend_on_install_or_path_order(
    tmp_path_factory: pytest.TempPathFactory, order: list[int], chance: random.Random
) -> None:
    root = tmp_path_factory.mktemp("site")
    for index in order:
        install(
            root / str(chance.randrange(3)), f"dist-{index}", f"guard.p{index % 4} = m{index}:P\nmemory.p{index} = m:P"
        )
    paths = [str(root / name) for name in "012"]
    chance.shuffle(paths)
    found = scan(paths)
    assert [one.name for one in found.found] == [
        "guard.p1",
        "guard.p2",
        "guard.p3",
        *[f"memory.p{i}" for i in range(5)],
    ]
    assert [[claim.distribution for claim in problem.claims] for problem in found.problems] == [["dist-0", "dist-4"]]
    expected = as_importlib_sees_it(*[Path(path) for path in paths])
    assert {(one.group, one.name, one.value) for one in found.found} == {
        one for one in expected if one[1] != "guard.p0"
    }


def test_the_standard_finder_is_the_one_that_is_read_directly() -> None:
    assert PathFinder in sys.meta_path
