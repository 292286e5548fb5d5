"""A history as one provider can read it: nothing foreign, every call with its result; what stayed behind is told."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentx import (
    FilePart,
    Message,
    ModelRequest,
    OpaquePart,
    Part,
    RequestRejectedError,
    TextPart,
    ThinkingPart,
    ToolCall,
    ToolResult,
)
from agentx.providers import NO_RESULT, Adapted, adapt


def user(*parts: Part | str) -> Message:
    return Message("user", tuple([TextPart(part) if isinstance(part, str) else part for part in parts]))


def assistant(*parts: Part | str) -> Message:
    return Message("assistant", tuple([TextPart(part) if isinstance(part, str) else part for part in parts]))


def results(*ids: str) -> Message:
    return Message("tool", tuple([ToolResult(call_id, "f", (TextPart(f"result {call_id}"),)) for call_id in ids]))


def call(call_id: str) -> ToolCall:
    return ToolCall(call_id, "f", "{}")


def adapted(*messages: Message, alternate: bool = False, context: tuple[str, ...] = ()) -> Adapted:
    request = ModelRequest("acme/big", messages, context=context)
    return adapt(request, provider="acme", alternate=alternate)


def test_a_history_that_can_be_read_stays_as_it_is() -> None:
    messages = (
        user("a"),
        assistant(ThinkingPart("t", "sig", provider="acme"), OpaquePart("acme", {"type": "x"}), call("1")),
        results("1"),
        assistant("b"),
    )
    found = adapted(*messages)
    assert found.messages == messages
    assert found.report is None


def test_what_another_provider_signed_stays_behind_and_is_told() -> None:
    found = adapted(
        user("a"),
        assistant(
            ThinkingPart("t", "sig", provider="other"),
            ThinkingPart("nobody's"),
            OpaquePart("other", {"type": "web_search"}),
            TextPart("b", {"citations": [1]}, "other"),
            ToolCall("1", "f", "{}", {"signature": "s"}, "other"),
        ),
        results("1"),
    )
    assert found.messages == (user("a"), assistant("b", call("1")), results("1"))
    assert found.dropped == ("reasoning of other", "reasoning of another provider", "web_search of other")
    assert found.report is not None


def test_a_message_that_has_nothing_left_is_left_out() -> None:
    found = adapted(user("a"), assistant(ThinkingPart("t", provider="other")), user("b"))
    assert found.messages == (user("a"), user("b"))


def test_messages_of_one_role_are_joined_where_they_have_to_alternate() -> None:
    found = adapted(
        user("a"),
        assistant(ThinkingPart("t", provider="other")),
        user("b"),
        assistant(call("1")),
        results("1"),
        user("c"),
        alternate=True,
        context=("note",),
    )
    roles = [message.role for message in found.messages]
    assert roles == ["user", "assistant", "user"]
    assert [part.kind for part in found.messages[-1].parts] == ["tool_result", "text", "text"]


def test_a_call_without_result_gets_one() -> None:
    found = adapted(user("a"), assistant(call("1"), call("2")), results("2"), user("b"))
    (first, second) = found.messages[2].parts
    assert isinstance(first, ToolResult)
    assert (first.call_id, first.text, first.status) == ("1", NO_RESULT, "unknown")
    assert second == results("2").parts[0]


def test_results_go_behind_their_call_and_before_what_the_user_says() -> None:
    found = adapted(user("a"), assistant(call("1"), call("2")), user("wait"), results("2"), results("1"))
    assert found.messages == (user("a"), assistant(call("1"), call("2")), results("1", "2"), user("wait"))


def test_a_result_without_its_call_stays_behind() -> None:
    found = adapted(results("0"), user("a"), assistant("b"), results("1"), user("c"))
    assert found.messages == (user("a"), assistant("b"), user("c"))
    assert found.dropped == ("2 × a tool result without its call",)


def test_an_id_may_come_again_in_a_later_answer() -> None:
    messages = (user("a"), assistant(call("1")), results("1"), assistant(call("1")), results("1"))
    assert adapted(*messages).messages == messages


def test_a_file_of_another_provider_is_named_in_its_place() -> None:
    foreign = FilePart("image/png", file_id="f_1", provider="other", name="cat.png")
    found = adapted(user("look", foreign), assistant("a cat"), user("and now?"))
    assert found.messages[0] == user("look", "[file cat.png (image/png) is not shown: its id is one of other]")
    assert found.dropped == ("a file (image/png)",)


def test_a_file_of_the_newest_message_that_cannot_be_sent_is_an_error() -> None:
    foreign = FilePart("image/png", file_id="f_1", provider="other")
    with pytest.raises(RequestRejectedError, match=r"the file \(image/png\) cannot be sent to acme.*one of other"):
        adapted(user("a"), assistant("b"), user("look", foreign))


def test_what_the_model_cannot_read_is_named_in_results_too() -> None:
    picture = FilePart("image/png", data=b"x")
    result = Message("tool", (ToolResult("1", "f", (TextPart("see"), picture)),))
    request = ModelRequest("acme/big", (user("a"), assistant(call("1")), result))
    found = adapt(request, provider="acme", reads=lambda part: not isinstance(part, FilePart))
    (shown,) = found.messages[2].parts
    assert isinstance(shown, ToolResult)
    assert shown.text == "see[file (image/png) is not shown: this model cannot read it]"


PARTS = st.one_of(
    st.sampled_from(["", "a"]).map(TextPart),
    st.sampled_from("123").map(call),
    st.sampled_from(["acme", "other", ""]).map(lambda provider: ThinkingPart("t", provider=provider)),
    st.sampled_from(["acme", "other"]).map(lambda provider: OpaquePart(provider, {"type": "x"})),
)
RESULTS = st.lists(st.sampled_from("123"), min_size=1, max_size=3, unique=True).map(lambda ids: results(*ids))
MESSAGES = st.one_of(
    st.just(user("u")),
    st.lists(PARTS, max_size=4, unique_by=lambda part: getattr(part, "id", id(part))).map(lambda p: assistant(*p)),
    RESULTS,
)


def check(messages: Sequence[Message]) -> None:
    """What every dialect asks of a history."""
    waiting: list[str] = []
    for message in messages:
        assert message.parts
        answered = [part.call_id for part in message.parts if isinstance(part, ToolResult)]
        if waiting or answered:
            assert answered == waiting
        waiting = [one.id for one in message.tool_calls]
        for part in message.parts:
            assert getattr(part, "provider", "") in ("", "acme")
            assert not isinstance(part, ThinkingPart) or part.provider == "acme"
    assert not waiting


@given(st.lists(MESSAGES, max_size=8), st.booleans())
def test_whatever_the_history_what_is_sent_is_valid(history: list[Message], alternate: bool) -> None:
    found = adapt(ModelRequest("acme/big", (user("first"), *history)), provider="acme", alternate=alternate)
    check(found.messages)
    roles = [message.role for message in found.messages]
    if alternate:
        assert all(one != other for one, other in pairwise(roles))
    again = adapt(ModelRequest("acme/big", found.messages), provider="acme", alternate=alternate)
    assert again.messages == found.messages
