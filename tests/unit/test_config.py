"""Models from models.toml, from the environment and from servers on this machine."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from registry import AnthropicLLM, ModelRegistry, OpenAIChatLLM, OpenAIResponsesLLM
from registry.config import load_models
from registry.environment import NO_MODEL, models_from_env
from registry.errors import ConfigError, NoModelError
from registry.gate_limits import Limits
from registry.llm import LLM
from registry.local import LOCAL_SERVERS, Server, find_local
from registry.prices import Price
from registry.providers import make_llm
from registry.testing import ScriptedLLM
from registry.toml_file import config_folder

FULL = """
[models.small]
provider = "openai_chat"
model = "NAME-AT-THE-PROVIDER"
base_url = "http://127.0.0.1:11434/v1"
api_key_env = "OPENAI_API_KEY"
roles = ["general", "fast"]
context_size = 32_768
max_output_tokens = 4_096
abilities = { tool_call = true, json_mode = false, json_schema = true }
price = { input = 0.15, cached_input = 0.075, output = 0.60 }
limits = { concurrency = 8, requests_per_minute = 600, tokens_per_minute = 200_000 }
fallbacks = ["large"]

[models.large]
provider = "openai"
model = "other"
roles = ["smart"]

[models.thinker]
provider = "anthropic"
model = "third"
api_key_env = "MY_KEY"
roles = ["reasoning"]
"""


def write(folder: Path, text: str, name: str = "models.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def load(path: Path, **env: str) -> ModelRegistry:
    return ModelRegistry.from_toml(path, env=env)


def from_env(
    env: dict[str, str], servers: tuple[Server, ...] = (), demo: Callable[[], LLM | None] | None = None
) -> ModelRegistry:
    return ModelRegistry._of(models_from_env(env, demo=demo, servers=servers))


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """The API keys models were made with, in order; adapters don't show theirs."""
    noted: list[str | None] = []

    def noting(provider: str, model: str, **options: Any) -> LLM:
        noted.append(options["api_key"])
        return make_llm(provider, model, **options)

    monkeypatch.setattr("registry.models_toml.make_llm", noting)
    monkeypatch.setattr("registry.environment.make_llm", noting)
    return noted


# models.toml


def test_a_whole_file(tmp_path: Path) -> None:
    models = load(write(tmp_path, FULL), OPENAI_API_KEY="sk-1", MY_KEY="sk-2")
    assert models.names() == ("small", "large", "thinker")
    small = models.get("small")
    assert isinstance(small, OpenAIChatLLM)
    assert (small.model_id, small.name) == ("NAME-AT-THE-PROVIDER", "small")
    assert (small.context_size, small.max_output_tokens) == (32_768, 4_096)
    assert small.abilities["tool_call"]
    assert small.abilities["json_schema"]
    assert not small.abilities["json_mode"]
    assert small.price == Price(Decimal("0.15"), Decimal("0.60"), Decimal("0.075"))
    assert small.limits == Limits(8, 600, 200_000)
    assert models.fallbacks("small") == ("large",)
    assert models.roles("small") == ("general", "fast")
    assert isinstance(models.for_role("smart"), OpenAIResponsesLLM)
    assert isinstance(models.for_role("reasoning"), AnthropicLLM)
    assert models.get("large").limits == Limits()
    assert models.origin["large"] == f"{tmp_path / 'models.toml'} [models.large]"


def changed(old: str, new: str) -> str:
    assert old in FULL
    return FULL.replace(old, new, 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("models = 7", r"models.toml: has no model"),
        ("", r"has no model: write a table \[models.NAME\]"),
        ("[models.a]\nprovider = \nmodel = 1", r"models.toml: not TOML: .*line 2"),
        ("[models.a]\n[models.a]\n", r"models.toml: not TOML"),
        (FULL + "\n[settings]\n", r"unknown key 'settings'"),
        ("[models]\na = 'x'", r"models.a = 'x': must be a table \[models.a\]"),
        (changed('provider = "openai_chat"', ""), r"\[models.small\] provider is missing: one of openai, openai_chat"),
        (changed('model = "NAME-AT-THE-PROVIDER"', ""), r"\[models.small\] model is missing: the model's name"),
        (changed('"openai_chat"', '"openai_chatt"'), r"provider = 'openai_chatt': unknown .*mean 'openai_chat'\?"),
        (changed('"openai_chat"', '"zzz"'), r"there are openai, openai_chat, anthropic"),
        (changed("context_size", "context_sise"), r"unknown key 'context_sise': did you mean 'context_size'\?"),
        (changed("32_768", '"32k"'), r"context_size = '32k': must be a whole number of tokens"),
        (changed("32_768", "32.5"), r"context_size = 32.5: must be a whole number"),
        (changed("32_768", "true"), r"context_size = true: must be a whole number"),
        (changed("4_096", "0"), r"max_output_tokens = 0: .* at least 1"),
        (changed("json_mode = false", "json_mood = false"), r"abilities\] unknown key 'json_mood': .*'json_mode'"),
        (changed("json_mode = false", "json_mode = 1"), r"\[models.small.abilities\] json_mode = 1: must be true"),
        (changed("output = 0.60", "putput = 0.60"), r"\[models.small.price\] unknown key 'putput'"),
        (changed(", output = 0.60", ""), r"\[models.small.price\] 'output' is missing"),
        (changed("0.60", "-1"), r"\[models.small.price\] output = -1: must be 0 or more"),
        (changed("0.60", "nan"), r"output = NaN: must be 0 or more"),
        (changed("0.60", '"x"'), r"output = 'x': must be a number, USD per million"),
        (
            changed("concurrency = 8", "concurrency = 0"),
            r"\[models.small.limits\] concurrency = 0: .*calls, at least 1",
        ),
        (changed("requests_per_minute", "request_per_minute"), r"did you mean 'requests_per_minute'"),
        (changed('["general", "fast"]', '"general"'), r"roles = 'general': must be a list of texts"),
        (changed('["general", "fast"]', '["a", "a"]'), r"roles = \['a', 'a'\]: names something twice"),
        (changed('["large"]', '["lage"]'), r"fallbacks = \['lage'\]: no model 'lage': did you mean 'large'\?"),
        (changed('["large"]', '["small"]'), r"cannot be its own fallback"),
        (changed('"http://127.0.0.1:11434/v1"', '"127.0.0.1:11434"'), r"base_url = .*: must be an address such as"),
        (changed('"http://127.0.0.1:11434/v1"', '"http://h:port/"'), r"base_url = .*: must be an address"),
        (changed('"MY_KEY"', '"OTHER_KEY"'), r"\[models.thinker\] needs an API key: the variable OTHER_KEY is not set"),
        (
            changed("{ tool_call = true, json_mode = false, json_schema = true }", "7"),
            r"abilities = 7: must be a table",
        ),
    ],
)
def test_each_mistake_names_its_place_and_what_is_right(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError, match=message) as caught:
        load(path, OPENAI_API_KEY="sk-1", MY_KEY="sk-2")
    assert str(path) in str(caught.value)


def test_a_key_written_into_the_file_is_refused_and_not_repeated(tmp_path: Path) -> None:
    path = write(tmp_path, changed('"MY_KEY"', '"sk-ant-secret"'))
    with pytest.raises(ConfigError, match="name of a variable") as caught:
        load(path, OPENAI_API_KEY="sk-1")
    assert "secret" not in str(caught.value)


def test_a_key_goes_only_where_the_file_sends_it(tmp_path: Path, keys: list[str | None]) -> None:
    own = '[models.a]\nprovider = "openai_chat"\nmodel = "m"\n'
    elsewhere = own + 'base_url = "http://127.0.0.1:1/v1"\n'
    named = elsewhere + 'api_key_env = "OPENAI_API_KEY"\n'
    with pytest.raises(ConfigError, match="OPENAI_API_KEY is not set"):
        load(write(tmp_path, own))
    for text, env in ((own, {"OPENAI_API_KEY": "k"}), (elsewhere, {"OPENAI_API_KEY": "k"})):
        load(write(tmp_path, text), **env)
    for env in ({"OPENAI_API_KEY": "k"}, {}):
        load(write(tmp_path, named), **env)
    assert keys == ["k", None, "k", None]


def test_local_models_have_no_list_price(tmp_path: Path) -> None:
    text = '[models.a]\nprovider = "openai_chat"\nmodel = "gpt-4o"\nbase_url = "http://127.0.0.1:1/v1"\n'
    assert load(write(tmp_path, text)).get("a").price is None


# Where the file is looked for


def test_files_are_looked_for_in_a_fixed_order(tmp_path: Path) -> None:
    def model(folder: str, name: str) -> Path:
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        text = f'[models.{name}]\nprovider = "openai_chat"\nmodel = "m"\nbase_url = "http://127.0.0.1:1/v1"\n'
        return write(tmp_path / folder, text)

    given, variable = model("given", "given"), model("variable", "variable")
    here, users = model("here", "here"), model("config/dagwright", "users")
    env = {"XDG_CONFIG_HOME": str(tmp_path / "config"), "HOME": str(tmp_path), "DAGWRIGHT_MODELS": str(variable)}
    cwd = tmp_path / "here"
    assert load_models(given, env, cwd).names() == ("given",)
    assert load_models("../given/models.toml", env, cwd).names() == ("given",)
    assert load_models(None, env, cwd).names() == ("variable",)
    del env["DAGWRIGHT_MODELS"]
    assert load_models(None, env, cwd).names() == ("here",)
    here.unlink()
    assert load_models(None, env, cwd).names() == ("users",)
    users.unlink()
    assert load_models(None, {**env, "OPENAI_API_KEY": "k", "OPENAI_MODEL": "m"}, cwd).names() == ("m",)
    with pytest.raises(ConfigError, match=r"nowhere.toml: no such file \(the command asks for it\)"):
        load_models("nowhere.toml", env, cwd)
    with pytest.raises(ConfigError, match=r"no such file \(DAGWRIGHT_MODELS asks for it\)"):
        load_models(None, {**env, "DAGWRIGHT_MODELS": "nowhere.toml"}, cwd)


def test_the_users_folder_follows_the_platform() -> None:
    home = {"HOME": "/h"}
    assert config_folder(home, "linux") == Path("/h/.config/dagwright")
    assert config_folder({**home, "XDG_CONFIG_HOME": "/x"}, "linux") == Path("/x/dagwright")
    assert config_folder({**home, "XDG_CONFIG_HOME": "relative"}, "linux") == Path("/h/.config/dagwright")
    assert config_folder(home, "darwin") == Path("/h/Library/Application Support/dagwright")
    assert config_folder({**home, "APPDATA": "/r"}, "win32") == Path("/r/dagwright")


# The environment


@pytest.mark.parametrize(
    ("env", "adapter", "base_url", "key"),
    [
        ({"OPENAI_API_KEY": "k"}, OpenAIResponsesLLM, None, "k"),
        ({"OPENAI_BASE_URL": "http://127.0.0.1:1/v1"}, OpenAIChatLLM, "http://127.0.0.1:1/v1", None),
        (
            {"OPENAI_BASE_URL": "http://127.0.0.1:1/v1", "OPENAI_API_KEY": "k"},
            OpenAIChatLLM,
            "http://127.0.0.1:1/v1",
            "k",
        ),
        ({"ANTHROPIC_API_KEY": "k"}, AnthropicLLM, None, "k"),
        ({"ANTHROPIC_BASE_URL": "http://127.0.0.1:1"}, AnthropicLLM, "http://127.0.0.1:1", None),
        ({"OPENAI_API_KEY": "k", "ANTHROPIC_API_KEY": "a"}, OpenAIResponsesLLM, None, "k"),
        ({"OPENAI_API_KEY": " ", "ANTHROPIC_API_KEY": "a"}, AnthropicLLM, None, "a"),
    ],
)
def test_keys_and_addresses_say_which_adapter(
    env: dict[str, str], adapter: type[LLM], base_url: str | None, key: str | None, keys: list[str | None]
) -> None:
    models = from_env({**env, "DAGWRIGHT_MODEL": "some-model"})
    llm: Any = models.get_default()
    assert type(llm) is adapter
    assert (llm.model_id, llm.base_url, keys) == ("some-model", base_url, [key])
    assert "DAGWRIGHT_MODEL" in models.origin["some-model"]


def test_roles_have_variables_of_their_own() -> None:
    env = {
        "OPENAI_API_KEY": "k",
        "ANTHROPIC_API_KEY": "a",
        "DAGWRIGHT_MODEL": "mid",
        "DAGWRIGHT_FAST_MODEL": "openai_chat:quick",
        "DAGWRIGHT_SMART_MODEL": "anthropic:clever",
        "DAGWRIGHT_REASONING_MODEL": "anthropic:clever",
    }
    models = from_env(env)
    assert models.names() == ("mid", "clever", "quick")
    assert models.roles("clever") == ("smart", "reasoning")
    assert type(models.for_role("fast")) is OpenAIChatLLM
    assert type(models.get_default()) is OpenAIResponsesLLM
    assert models.origin["clever"] == (
        "Messages at Anthropic, named by DAGWRIGHT_SMART_MODEL, DAGWRIGHT_REASONING_MODEL"
    )


def test_the_same_name_at_two_providers_is_two_models() -> None:
    env = {
        "OPENAI_API_KEY": "k",
        "ANTHROPIC_API_KEY": "a",
        "DAGWRIGHT_MODEL": "m",
        "DAGWRIGHT_FAST_MODEL": "anthropic:m",
    }
    assert from_env(env).names() == ("m", "anthropic:m")


def test_a_colon_in_a_name_is_no_provider() -> None:
    env = {"OPENAI_BASE_URL": "http://127.0.0.1:1/v1", "DAGWRIGHT_MODEL": "qwen:1.5b"}
    assert from_env(env).get_default().model_id == "qwen:1.5b"
    assert from_env({**env, "DAGWRIGHT_MODEL": "openai:qwen:1.5b"}).get_default().model_id == "qwen:1.5b"


def test_the_providers_own_variables_name_models_too() -> None:
    env = {"ANTHROPIC_API_KEY": "a", "ANTHROPIC_MODEL": "theirs", "OPENAI_MODEL": "no-key-for-it"}
    assert from_env(env).get_default().model_id == "theirs"
    assert from_env({**env, "DAGWRIGHT_MODEL": "ours"}).names() == ("ours",)


def test_a_password_in_an_address_is_not_shown(serve: Callable[..., "Fake"]) -> None:
    url = serve({}).url.replace("http://", "http://me:hunter2@")
    models = from_env({"OPENAI_BASE_URL": f"{url}/v1", "DAGWRIGHT_MODEL": "m"})
    assert models.get("m").base_url == f"{url}/v1"  # type: ignore[attr-defined]
    assert "hunter2" not in models.origin["m"]
    with pytest.raises(NoModelError, match="lists no models") as caught:
        from_env({"OPENAI_BASE_URL": f"{url}/v1"})
    assert "hunter2" not in str(caught.value)


def test_a_provider_that_is_not_set_up_is_told() -> None:
    with pytest.raises(ConfigError, match="needs ANTHROPIC_API_KEY or ANTHROPIC_BASE_URL, and neither is set"):
        from_env({"OPENAI_API_KEY": "k", "DAGWRIGHT_MODEL": "anthropic:m"})
    with pytest.raises(ConfigError, match="names no model: write openai:NAME"):
        from_env({"OPENAI_API_KEY": "k", "DAGWRIGHT_MODEL": "openai:"})


def test_no_model_name_is_a_default() -> None:
    with pytest.raises(NoModelError, match="OPENAI_API_KEY is set, but no model is named: set DAGWRIGHT_MODEL"):
        from_env({"OPENAI_API_KEY": "k"})


def test_sizes_hold_for_all_models_of_the_environment() -> None:
    env = {"OPENAI_API_KEY": "k", "DAGWRIGHT_MODEL": "m", "LLM_CONTEXT_SIZE": "32_000", "LLM_MAX_OUTPUT_TOKENS": "2000"}
    llm = from_env(env).get_default()
    assert (llm.context_size, llm.max_output_tokens) == (32_000, 2_000)
    llm = from_env({**env, "DAGWRIGHT_LLM_CONTEXT_SIZE": "9"}).get_default()
    assert llm.context_size == 9
    with pytest.raises(ConfigError, match="LLM_CONTEXT_SIZE='32k': must be a whole number of tokens"):
        from_env({**env, "LLM_CONTEXT_SIZE": "32k"})


def test_nothing_at_all_says_what_to_set() -> None:
    with pytest.raises(NoModelError) as caught:
        from_env({})
    assert str(caught.value) == NO_MODEL
    with pytest.raises(NoModelError, match="DAGWRIGHT_MODEL='m' names a model, but nothing serves it"):
        from_env({"DAGWRIGHT_MODEL": "m"})


def test_the_demonstration_model_comes_last() -> None:
    toy = ScriptedLLM([], model_id="toy")
    models = from_env({}, demo=lambda: toy)
    assert models.get_default() is toy
    assert models.origin == {"toy": "the installed demonstration model"}
    assert from_env({"OPENAI_API_KEY": "k", "OPENAI_MODEL": "m"}, demo=lambda: toy).names() == ("m",)
    with pytest.raises(NoModelError):
        from_env({}, demo=lambda: None)


# Servers on loopback


class Fake:
    """A server that answers GET from `replies`, and notes paths and keys."""

    def __init__(self, replies: dict[str, Any], delay: float = 0.0) -> None:
        seen: list[tuple[str, str | None]] = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                seen.append((self.path, self.headers.get("Authorization") or self.headers.get("x-api-key")))
                time.sleep(delay)
                reply = replies.get(self.path)
                status, body = (404, b"not here") if reply is None else (200, reply)
                if isinstance(body, int):
                    status, body = body, b""
                body = body if isinstance(body, bytes) else json.dumps(body).encode()
                try:
                    self.send_response(status)
                    self.send_header("Content-Length", str(len(body)))
                    if status in (301, 302):
                        self.send_header("Location", "/elsewhere/models")
                    self.end_headers()
                    self.wfile.write(body)
                except OSError:
                    pass  # the client has left

            def log_message(self, *_args: Any) -> None:
                pass

        self.seen = seen
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def serve() -> Iterator[Callable[..., Fake]]:
    started: list[Fake] = []

    def start(replies: dict[str, Any], delay: float = 0.0) -> Fake:
        started.append(Fake(replies, delay))
        return started[-1]

    yield start
    for server in started:
        server.close()


def listing(*ids: str, **more: Any) -> dict[str, Any]:
    return {"object": "list", "data": [{"id": name, "object": "model", **more} for name in ids]}


def test_local_servers_and_their_ports() -> None:
    assert [(server.title, server.base_url) for server in LOCAL_SERVERS] == [
        ("Ollama", "http://127.0.0.1:11434/v1"),
        ("llama.cpp", "http://127.0.0.1:8080/v1"),
        ("LM Studio", "http://127.0.0.1:1234/v1"),
    ]


def test_a_llama_cpp_server_is_found_with_its_context(serve: Callable[..., Fake]) -> None:
    list_of_one = listing("/models/toy-1.5b.gguf", owned_by="llamacpp", meta={"n_ctx_train": 32_768})
    fake = serve({"/v1/models": list_of_one, "/props": {"default_generation_settings": {"n_ctx": 8_192}}})
    models = from_env({}, (Server("llama.cpp", f"{fake.url}/v1"),))
    llm: Any = models.get("toy-1.5b")
    assert isinstance(llm, OpenAIChatLLM)
    assert (llm.model_id, llm.base_url, llm.context_size) == ("/models/toy-1.5b.gguf", f"{fake.url}/v1", 8_192)
    assert llm.abilities["json_schema"]
    assert llm.price is None
    assert models.origin["toy-1.5b"] == f"llama.cpp at {fake.url}/v1, named by its only model"
    assert from_env({"LLM_CONTEXT_SIZE": "999"}, (Server("x", f"{fake.url}/v1"),)).get_default().context_size == 999


def test_without_props_the_trained_context_counts(serve: Callable[..., Fake]) -> None:
    fake = serve({"/v1/models": listing("toy", owned_by="llamacpp", meta={"n_ctx_train": 2_048})})
    assert from_env({}, (Server("llama.cpp", f"{fake.url}/v1"),)).get_default().context_size == 2_048


def test_several_local_models_need_a_name(serve: Callable[..., Fake]) -> None:
    fake = serve({"/v1/models": listing("small:latest", "large:7b", "text-embedding-x")})
    servers = (Server("Ollama", f"{fake.url}/v1"),)
    with pytest.raises(ConfigError, match=r"has several models: set DAGWRIGHT_MODEL to one of small:latest, large:7b$"):
        from_env({}, servers)
    assert from_env({"DAGWRIGHT_MODEL": "large:7b"}, servers).get_default().model_id == "large:7b"
    assert from_env({"DAGWRIGHT_MODEL": "small"}, servers).get_default().model_id == "small"
    with pytest.raises(NoModelError, match=r"no local server has that model .*Ollama at .* has small:latest, large:7b"):
        from_env({"DAGWRIGHT_MODEL": "huge"}, servers)


def test_the_first_local_server_is_taken_unless_another_has_the_named_model(serve: Callable[..., Fake]) -> None:
    one, two = serve({"/v1/models": listing("a")}), serve({"/v1/models": listing("b")})
    servers = (Server("one", f"{one.url}/v1"), Server("two", f"{two.url}/v1"))
    assert from_env({}, servers).names() == ("a",)
    models = from_env({"DAGWRIGHT_MODEL": "b", "DAGWRIGHT_FAST_MODEL": "a"}, servers)
    assert models.get("b").base_url == f"{two.url}/v1"  # type: ignore[attr-defined]
    assert models.for_role("fast").base_url == f"{one.url}/v1"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "reply",
    [None, b"<html>a wiki</html>", {"data": "x"}, {"data": []}, [1], {"data": [{"name": "no id"}]}, 302, 500, b"\xff"],
)
def test_other_services_on_these_ports_are_no_model_servers(serve: Callable[..., Fake], reply: Any) -> None:
    fake = serve({"/v1/models": reply, "/elsewhere/models": listing("a")})
    assert find_local((Server("x", f"{fake.url}/v1"),), timeout=5) == ()
    assert [path for path, _key in fake.seen] == ["/v1/models"]


def test_slow_and_absent_servers_cost_a_third_of_a_second_together(serve: Callable[..., Fake]) -> None:
    slow, quick = serve({"/v1/models": listing("a")}, delay=1.0), serve({"/v1/models": listing("b")})
    servers = [Server("x", f"{slow.url}/v1")] * 3 + [Server("gone", "http://127.0.0.1:1/v1")]
    started = time.monotonic()
    found = find_local((*servers, Server("quick", f"{quick.url}/v1")))
    assert time.monotonic() - started < 0.9
    assert [server.title for server in found] == ["quick"]


def test_local_servers_are_asked_without_a_proxy(serve: Callable[..., Fake], monkeypatch: pytest.MonkeyPatch) -> None:
    proxy, fake = serve({}), serve({"/v1/models": listing("a")})
    monkeypatch.setenv("http_proxy", proxy.url)
    monkeypatch.delenv("no_proxy", raising=False)
    assert find_local((Server("x", f"{fake.url}/v1"),), timeout=5)
    assert proxy.seen == []


def test_a_compatible_server_with_one_model_needs_no_name(serve: Callable[..., Fake]) -> None:
    fake = serve({"/v1/models": listing("only", max_model_len=16_384)})
    models = from_env({"OPENAI_BASE_URL": f"{fake.url}/v1/", "OPENAI_API_KEY": "sk-1"})
    assert (models.get_default().model_id, models.get_default().context_size) == ("only", 16_384)
    assert fake.seen == [("/v1/models", "Bearer sk-1")]
    anthropic = from_env({"ANTHROPIC_BASE_URL": fake.url, "ANTHROPIC_API_KEY": "sk-2"})
    assert isinstance(anthropic.get_default(), AnthropicLLM)
    assert fake.seen[-1] == ("/v1/models", "sk-2")


def test_a_named_model_at_a_compatible_server_is_not_looked_up(serve: Callable[..., Fake]) -> None:
    fake = serve({})
    from_env({"OPENAI_BASE_URL": f"{fake.url}/v1", "DAGWRIGHT_MODEL": "m"})
    assert fake.seen == []


def test_a_compatible_server_without_a_list_needs_a_name(serve: Callable[..., Fake]) -> None:
    fake = serve({})
    with pytest.raises(NoModelError, match=r"OPENAI_BASE_URL=http://127.* lists no models\. .*set DAGWRIGHT_MODEL"):
        from_env({"OPENAI_BASE_URL": f"{fake.url}/v1"})
