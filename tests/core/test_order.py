"""The place of a layer depends on phases, the user, constraints and ids: on nothing else."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentx._errors import OrderError
from agentx._order import PHASES, Arrangement, Candidate, Constraint, arrange, default_phase
from agentx._why import why, why_outside


def layer(
    plugin: str, phase: str = "prepare", *, before: str = "", after: str = "", used: int | None = None
) -> Candidate:
    rules = [Constraint("before", target, plugin) for target in before.split()]
    rules += [Constraint("after", target, plugin) for target in after.split()]
    return Candidate(plugin, phase, used=used, constraints=tuple(rules))


def labels(arrangement: Arrangement) -> list[str]:
    return [one.label for one in arrangement.order]


def named(arrangement: Arrangement, label: str) -> Candidate:
    return next(one for one in arrangement.order if one.label == label)


def test_layers_are_sorted_by_phase_then_the_users_position_then_id() -> None:
    found = arrange(
        "model",
        [
            layer("memory.b"),
            layer("memory.a"),
            layer("model.retry", "retry"),
            layer("guard.budget", "gate"),
            layer("memory.z", used=1),
            layer("memory.y", used=2),
            layer("observe.usage", "observe"),
        ],
    )
    assert labels(found) == [
        "observe.usage",
        "guard.budget",
        "memory.z",
        "memory.y",
        "memory.a",
        "memory.b",
        "model.retry",
    ]


def test_patterns_of_the_configuration_come_before_the_order_of_use_inside_a_phase() -> None:
    candidates = [layer("memory.a", used=0), layer("skills.b"), layer("skills.a"), layer("guard.x", "gate")]
    assert labels(arrange("turn", candidates, ["skills.b", "skills.*", "guard.*"])) == [
        "guard.x",
        "skills.b",
        "skills.a",
        "memory.a",
    ]


def test_the_kind_of_an_id_gives_the_default_phase() -> None:
    assert default_phase("observe.log") == "observe"
    assert default_phase("redact.pii") == "redact"
    assert default_phase("memory.vector") == "prepare"
    assert default_phase("model.router") == default_phase("model.fallback") == "route"
    assert default_phase("model.cache#second") == "cache"
    assert default_phase("model.retry") == "retry"
    assert default_phase("acme.thing") == default_phase("model.other") == "prepare"


def test_a_guard_must_state_its_phase() -> None:
    with pytest.raises(OrderError, match=r"guard\.x states no phase.*'gate'.*'verify'") as caught:
        default_phase("guard.x")
    assert caught.value.plugin == "guard.x"


@pytest.mark.parametrize("hook", ["init", "session", "turn"])
@pytest.mark.parametrize("phase", ["route", "cache", "retry", "attempt"])
def test_inner_phases_do_not_exist_around_a_lifetime_or_a_turn(hook: str, phase: str) -> None:
    with pytest.raises(OrderError, match=rf"model\.x has phase '{phase}' in hook {hook}"):
        arrange(hook, [layer("model.x", phase)])


def test_an_unknown_phase_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(OrderError, match=r"memory\.x has the unknown phase 'prepair'.*did you mean 'prepare'"):
        arrange("model", [layer("memory.x", "prepair")])


def test_a_constraint_moves_the_plugin_that_declares_it_next_to_its_target() -> None:
    rest = [layer("memory.b"), layer("memory.c"), layer("memory.d")]
    assert labels(arrange("turn", [*rest, layer("memory.e", before="memory.c")])) == [
        "memory.b",
        "memory.e",
        "memory.c",
        "memory.d",
    ]
    assert labels(arrange("turn", [*rest, layer("memory.a", after="memory.c")])) == [
        "memory.b",
        "memory.c",
        "memory.a",
        "memory.d",
    ]


def test_a_constraint_that_already_holds_changes_nothing() -> None:
    found = arrange("turn", [layer("memory.a", before="memory.c"), layer("memory.b"), layer("memory.c")])
    assert labels(found) == ["memory.a", "memory.b", "memory.c"]
    assert found.moves == ()


def test_a_bystander_moves_only_when_constraints_chain_through_it() -> None:
    found = arrange(
        "turn",
        [
            layer("memory.a"),
            layer("memory.b"),
            layer("memory.c", before="memory.d"),
            layer("memory.d", before="memory.a"),
        ],
    )
    assert labels(found) == ["memory.c", "memory.d", "memory.a", "memory.b"]
    assert [one.label for one in found.moves[0].carried] == ["memory.c"]


def test_a_plugin_id_means_all_its_instances_and_an_instance_id_only_one() -> None:
    budgets = [layer("memory.a"), layer("memory.a#x"), layer("memory.a#y")]
    assert labels(arrange("turn", [*budgets, layer("memory.z", before="memory.a")]))[0] == "memory.z"
    assert labels(arrange("turn", [*budgets, layer("memory.z", before="memory.a#x")])) == [
        "memory.a",
        "memory.z",
        "memory.a#x",
        "memory.a#y",
    ]


def test_a_kind_means_the_plugins_of_the_same_phase_and_never_the_plugin_itself() -> None:
    found = arrange(
        "model",
        [layer("guard.a", "gate"), layer("guard.b", "verify"), layer("guard.z", "verify", before="guard.*")],
    )
    assert labels(found) == ["guard.a", "guard.z", "guard.b"]
    twins = arrange("model", [layer("guard.z#1", "gate", before="guard.*"), layer("guard.z", "gate", before="guard.*")])
    assert labels(twins) == ["guard.z", "guard.z#1"]


def test_a_constraint_on_a_plugin_that_is_not_there_means_nothing() -> None:
    assert labels(arrange("turn", [layer("memory.b", before="memory.gone"), layer("memory.a")])) == [
        "memory.a",
        "memory.b",
    ]


def test_a_cycle_is_refused_with_every_edge_and_who_declared_it() -> None:
    with pytest.raises(OrderError) as caught:
        arrange(
            "turn",
            [
                layer("memory.a", before="memory.b"),
                layer("memory.b", before="memory.c"),
                Candidate(
                    "memory.c",
                    "prepare",
                    constraints=(Constraint("before", "memory.*", "agentx.toml [plugins.memory.c]"),),
                ),
                layer("memory.d", after="memory.c"),
            ],
        )
    message = str(caught.value)
    assert "memory.a before memory.b, declared by memory.a" in message
    assert "memory.b before memory.c, declared by memory.b" in message
    assert "memory.c before memory.a (before memory.*), declared by agentx.toml [plugins.memory.c]" in message
    assert "memory.d" not in message  # its edge is in no cycle


def test_a_constraint_against_the_phases_is_refused_and_names_the_users_way_out() -> None:
    with pytest.raises(OrderError, match=r"`phase` setting.*memory\.a before guard\.x, declared by memory\.a"):
        arrange("turn", [layer("memory.a", before="guard.x"), layer("guard.x", "gate")])


def test_one_layer_cannot_be_there_twice() -> None:
    with pytest.raises(OrderError, match=r"hook turn has memory\.a twice"):
        arrange("turn", [layer("memory.a"), layer("memory.a")])


def test_positions_of_use_that_phases_turn_around_are_reported_with_the_override() -> None:
    found = arrange("model", [layer("memory.a", used=0), layer("guard.x", "gate", used=1)])
    (reversal,) = found.reversals
    assert str(reversal) == (
        "memory.a comes before guard.x in the order of use, but stands inside it: phase prepare is inside phase gate; "
        "phase = 'gate' for memory.a puts it outside"
    )
    assert arrange("model", [layer("memory.a"), layer("guard.x", "gate")], ["memory.*", "guard.*"]).reversals
    assert not arrange("model", [layer("memory.a", used=1), layer("guard.x", "gate", used=0)]).reversals


def test_why_one_plugin_is_outside_another_names_the_deciding_reason() -> None:
    found = arrange(
        "model",
        [
            Candidate("guard.x", "gate", phase_by="declared by guard.x"),
            layer("memory.a"),
            layer("memory.b"),
            layer("memory.c", before="memory.a"),
            layer("memory.u", used=0),
            layer("memory.v", used=1),
        ],
        ["memory.v"],
    )
    one = {label: named(found, label) for label in labels(found)}

    def reason(outer: str, inner: str) -> str:
        (only,) = why_outside(found, one[outer], one[inner])
        return f"{only.kind}: {only}"

    assert labels(found) == ["guard.x", "memory.v", "memory.u", "memory.c", "memory.a", "memory.b"]
    assert reason("guard.x", "memory.a") == (
        "phase: phase gate is outside phase prepare: guard.x (declared by guard.x), memory.a"
    )
    assert reason("memory.v", "memory.u") == "position: order.model lists 'memory.v', and memory.u is not in it"
    assert reason("memory.u", "memory.a") == "position: memory.u is given in code, memory.a is not"
    assert reason("memory.c", "memory.a") == "constraint: memory.c before memory.a, declared by memory.c"
    assert reason("memory.a", "memory.b") == "id: nothing but the order of ids puts memory.a outside memory.b"
    assert reason("memory.c", "memory.b") == (
        "constraint: memory.c moved outward: memory.c before memory.a, declared by memory.c"
    )


def test_why_a_plugin_is_at_its_place_tells_phase_position_and_constraints() -> None:
    found = arrange(
        "turn", [layer("memory.a", after="memory.b"), layer("memory.b", used=0), layer("memory.c", before="memory.b")]
    )
    texts = [str(reason) for reason in why(found, named(found, "memory.b"))]
    assert texts[:2] == ["memory.b is in phase prepare", "memory.b is number 1 in the order of use"]
    assert "memory.a after memory.b, declared by memory.a: holds without a move" in texts
    assert "memory.c moved outward: memory.c before memory.b, declared by memory.c" in [
        str(reason) for reason in why(found, named(found, "memory.c"))
    ]


ids = [f"{kind}.{name}" for kind in ("guard", "memory", "observe") for name in "abcd"] + ["guard.a#one", "guard.a#two"]
targets = [*ids, "guard.*", "memory.*"]
rules = st.lists(st.tuples(st.sampled_from(["before", "after"]), st.sampled_from(targets)), max_size=3)


@st.composite
def stacks(draw: st.DrawFn) -> list[Candidate]:
    chosen = draw(st.lists(st.sampled_from(ids), unique=True, max_size=9))
    phases = st.sampled_from(PHASES[:3])
    return [
        Candidate(
            plugin,
            draw(phases),
            used=draw(st.none() | st.integers(0, 20)),
            constraints=tuple(Constraint(relation, target, plugin) for relation, target in draw(rules)),  # type: ignore[arg-type]
        )
        for plugin in chosen
    ]


def outcome(candidates: list[Candidate]) -> object:
    try:
        found = arrange("model", candidates, ["memory.c", "guard.*"])
    except OrderError as error:
        return str(error)
    return labels(found), [str(move.edge) for move in found.moves], [str(item) for item in found.reversals]


@given(stacks(), st.randoms())
def test_the_order_is_the_same_whatever_order_the_candidates_come_in(
    candidates: list[Candidate], chance: random.Random
) -> None:
    shuffled = list(candidates)
    chance.shuffle(shuffled)
    assert outcome(candidates) == outcome(shuffled)


@given(stacks())
def test_every_constraint_holds_and_nobody_unnamed_moves(candidates: list[Candidate]) -> None:
    try:
        found = arrange("model", candidates)
    except OrderError:
        return
    place = {one: index for index, one in enumerate(found.order)}
    assert all(place[edge.outer] < place[edge.inner] for edge in found.edges)
    assert sorted(found.order, key=lambda one: PHASES.index(one.phase)) == list(found.order)
    tied = {one for edge in found.edges for one in (edge.outer, edge.inner)}
    without = arrange("model", [Candidate(one.plugin, one.phase, used=one.used) for one in candidates])
    free = [one.plugin for one in found.order if one not in tied]
    assert free == [one.plugin for one in without.order if one.plugin in free]
    if not found.moves:
        assert labels(found) == labels(without)


@given(stacks())
def test_every_neighbour_has_a_reason(candidates: list[Candidate]) -> None:
    try:
        found = arrange("model", candidates, ["memory.*"])
    except OrderError:
        return
    for index, outer in enumerate(found.order):
        assert why(found, outer)
        for inner in found.order[index + 1 :]:
            assert why_outside(found, outer, inner)
