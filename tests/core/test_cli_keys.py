"""`agentx models PREFIX` with keys, abilities and prices, and `agentx doctor --check-keys`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from peers.wire import Request, WireServer, reply

from ._cli import Cli

KEY = "sk-acme-very-secret-1234"
PROVIDER = """
    from decimal import Decimal
    from typing import ClassVar
    import attrs
    import msgspec
    from agentx import AuthenticationError, Capabilities, ModelInfo, ModelResponse, QuotaError, RequestRejectedError
    from agentx import TextPart
    from agentx.providers import HttpProvider

    ERRORS = {401: AuthenticationError, 402: QuotaError, 400: RequestRejectedError}

    @attrs.define(eq=False, kw_only=True)
    class Acme(HttpProvider):
        default_url: ClassVar[str] = "https://api.acme.example/v1"
        key_variables: ClassVar[tuple[str, ...]] = ("ACME_API_KEY",)

        def model(self, name):
            return Model(f"{self.prefix}/{name}", self)

        def models(self):
            origin = self.key_source.origin()
            detail = "" if origin else self.key_source.missing()
            able = Capabilities(tools=True, json_schema=True, images=False, max_context=200000)
            big = {"input_tokens": Decimal("3.50"), "output_tokens": Decimal("15")}
            small = {"input_tokens": Decimal("1"), "output_tokens": Decimal("4")}
            return [
                ModelInfo("acme/big", "for large things", bool(origin), detail, able, origin, big),
                ModelInfo("acme/small", "for small ones", bool(origin), detail, able, origin, small),
            ]

    class Server(Acme):
        def models(self):
            return [ModelInfo(f"{self.prefix}/…", "any model", key=self.key_source.origin())]

    class Silent(Acme):
        def models(self):
            return []

    class Model:
        def __init__(self, name, provider):
            self.name, self.provider = name, provider

        async def respond(self, request, emit):
            key = self.provider.key_source.key()
            body = msgspec.json.encode({"model": self.name, "max_tokens": request.settings.max_tokens})
            headers = {"authorization": f"Bearer {key.reveal()}"}
            async with self.provider.connection.post("/chat", body, headers, model=self.name) as exchange:
                text = (await exchange.read()).decode()
                if exchange.status != 200:
                    # a provider that forgets to mask
                    raise ERRORS[exchange.status](text, status=exchange.status)
            return ModelResponse((TextPart(text),))
"""


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    cli = Cli(tmp_path)
    entries = "[agentx.models]\nacme = acme:Acme\nserver = acme:Server\nsilent = acme:Silent"
    cli.install("acme", entries, acme=PROVIDER)
    return cli


def answer(request: Request) -> Any:
    """Accept the one key, and refuse others with words that repeat them."""
    if request.headers["authorization"] == f"Bearer {KEY}":
        return reply(200, body=b"hi")
    return reply(401, body=f"bad key {request.headers['authorization']}".encode())


@pytest.fixture
def server() -> Iterator[WireServer]:
    with WireServer(answer) as server:
        yield server


def keys(cli: Cli, *arguments: str, server: WireServer | None = None, **environment: str) -> list[dict[str, str]]:
    if server is not None:
        environment |= {f"AGENTX__MODELS__{name}__BASE_URL": server.url for name in ("ACME", "SERVER", "SILENT")}
    done = cli("doctor", "--json", *arguments, **environment)
    assert KEY not in done.out + done.err
    return [one for one in done.json["findings"] if one["topic"] == "Keys"]


# models


def test_the_listing_says_where_the_key_is_from_and_what_a_model_can_do_and_costs(cli: Cli) -> None:
    out = " ".join(cli("models", "acme", ACME_API_KEY=KEY).out.split())
    assert "acme/big yes acme 1.0 environment ACME_API_KEY tools json 200,000 3.50, 15 for large things" in out
    assert "server/" not in out
    assert KEY not in out


def test_json_has_all_of_it(cli: Cli) -> None:
    (big, small) = cli("models", "acme", "--json", ACME_API_KEY=KEY).json
    assert (big["key"], big["ready"], big["capabilities"]["tools"]) == ("environment ACME_API_KEY", True, True)
    assert big["prices"] == {"input_tokens": "3.50", "output_tokens": "15"}
    assert (small["id"], small["provider"], small["distribution"]) == ("acme/small", "acme", "acme")
    assert cli("models", "--json", "acme", ACME_API_KEY=KEY).json == [big, small]
    assert cli("models", "list", "acme", "--json", ACME_API_KEY=KEY).json == [big, small]


def test_a_key_of_the_configuration_is_named_and_not_shown(cli: Cli) -> None:
    cli.write("agentx.toml", f'[models.acme]\napi_key = "{KEY}"\n')
    done = cli("models", "acme", "--json")
    assert done.json[0]["key"] == "configuration"
    assert KEY not in done.out


def test_what_all_models_of_a_provider_miss_is_said_once(cli: Cli) -> None:
    done = cli("models", "acme")
    assert done.err.count("set the environment variable ACME_API_KEY") == 1
    assert "ACME_API_KEY" not in done.out


def test_a_provider_that_lists_nothing_says_what_it_needs(cli: Cli) -> None:
    done = cli("models", "silent")
    assert (done.code, done.out) == (0, "")
    assert (
        "the provider silent of acme 1.0 cannot be asked: there is no key for silent: set the environment" in done.err
    )


def test_an_unknown_prefix_names_what_to_install(cli: Cli) -> None:
    done = cli("models", "nobody")
    assert done.code == 5
    assert "no installed plugin serves the models of 'nobody': install the plugin that serves it" in done.err


def test_prices_come_from_genai_prices_where_a_provider_states_none(cli: Cli) -> None:
    pytest.importorskip("genai_prices")
    source = (
        "from agentx import ModelInfo\nclass P:\n    def models(self):\n        return [ModelInfo('openai/gpt-4o')]\n"
    )
    cli.install("other", "[agentx.models]\nother = other:P", other=source)
    (one,) = cli("models", "other", "--json").json
    assert {"input_tokens", "output_tokens"} <= set(one["prices"])


# doctor --check-keys


def test_doctor_asks_nobody_unless_it_is_told_to(cli: Cli, server: WireServer) -> None:
    assert keys(cli, server=server, ACME_API_KEY=KEY) == []
    assert server.requests == []


def test_a_key_that_is_accepted_is_fine_after_one_small_request_to_the_cheapest_model(
    cli: Cli, server: WireServer
) -> None:
    (found,) = keys(cli, "--check-keys", "acme", server=server, ACME_API_KEY=KEY)
    assert (found["verdict"], found["text"]) == (
        "fine",
        "acme: the key (environment ACME_API_KEY): acme/small answered",
    )
    assert [request.json for request in server.requests] == [{"model": "acme/small", "max_tokens": 16}]


def test_a_key_that_is_refused_is_wrong_and_shown_to_nobody(cli: Cli, server: WireServer) -> None:
    wrong = "sk-acme-wrong-98765"
    done = cli("doctor", "--check-keys", "acme", ACME_API_KEY=wrong, AGENTX__MODELS__ACME__BASE_URL=server.url)
    assert done.code == 1
    assert "acme: the key (environment ACME_API_KEY) asked acme/small: AuthenticationError: bad key" in done.out
    assert wrong not in done.out + done.err


@pytest.mark.parametrize(("status", "verdict"), [(402, "wrong"), (400, "note")])
def test_an_account_without_money_is_wrong_and_a_request_that_was_refused_is_not(
    cli: Cli, status: int, verdict: str
) -> None:
    with WireServer([reply(status, body=b"no")]) as server:
        (found,) = keys(cli, "--check-keys", "acme", server=server, ACME_API_KEY=KEY)
    assert found["verdict"] == verdict


def test_a_server_that_cannot_be_reached_is_a_note(cli: Cli) -> None:
    url = "http://127.0.0.1:9"
    (found,) = keys(cli, "--check-keys", "acme", ACME_API_KEY=KEY, AGENTX__MODELS__ACME__BASE_URL=url)
    assert found["verdict"] == "note"
    assert "could not be checked: ModelConnectionError" in found["text"]


def test_a_missing_key_is_wrong_only_where_it_was_asked_for(cli: Cli) -> None:
    (found,) = keys(cli, "--check-keys", "acme")
    assert found["verdict"] == "wrong"
    assert "set the environment variable ACME_API_KEY" in found["text"]
    assert [one["text"] for one in keys(cli, "--check-keys")] == ["no provider has a key"]


def test_all_providers_with_a_key_are_asked_and_one_without_a_known_model_says_so(cli: Cli, server: WireServer) -> None:
    found = keys(cli, "--check-keys", server=server, ACME_API_KEY=KEY)
    assert [(one["text"].partition(":")[0], one["verdict"]) for one in found] == [
        ("acme", "fine"),
        ("server", "note"),
        ("silent", "note"),
    ]
    assert found[1]["fix"] == "agentx doctor --check-keys server/MODEL"


def test_a_model_may_be_named(cli: Cli, server: WireServer) -> None:
    (found,) = keys(cli, "--check-keys", "server/some/model", server=server, ACME_API_KEY=KEY)
    assert found["verdict"] == "fine"
    assert server.requests[0].json["model"] == "server/some/model"


def test_nobody_is_asked_where_requests_are_not_allowed(cli: Cli) -> None:
    (found,) = keys(cli, "--check-keys", "acme", ACME_API_KEY=KEY, AGENTX_ALLOW_MODEL_REQUESTS="0")
    assert found["verdict"] == "note"
    assert "a request to api.acme.example is not allowed, AGENTX_ALLOW_MODEL_REQUESTS is 0" in found["text"]


def test_an_unknown_provider_is_wrong_and_says_what_to_install(cli: Cli) -> None:
    (found,) = keys(cli, "--check-keys", "nobody/model")
    assert found["verdict"] == "wrong"
    assert "no installed plugin serves the models of 'nobody': install" in found["text"]
