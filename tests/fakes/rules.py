# ruff: noqa: E501 - one row a line: it is a table
"""The providers' rules, in one table.

A row says what a rule demands, where that stands, and how it is checked. `kind` is "documented" (a provider's page)
or "seen" (a public report that shows the error); `date` is the day of the report, or the day the page was read.
The server goes through the rows of a dialect in order and answers the first broken one with a real-looking error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from . import checks_anthropic as a
from . import checks_any as any_
from . import checks_chat as c
from . import checks_responses as r

Dialect = Literal["any", "chat", "responses", "anthropic"]


@dataclass(frozen=True, slots=True)
class Rule:
    """One row. `param` and `code` stand in OpenAI's errors, for clients that learn from them."""

    id: str
    dialect: Dialect
    says: str
    source: str
    date: str
    kind: Literal["documented", "seen"]
    check: Callable[[Any], str | None]
    param: str | None = None
    code: str | None = None
    status: int = 400


READ = "2026-11-30"
UNKNOWN = "unknown_parameter"
UNSUPPORTED = "unsupported_parameter"

# fmt: off
RULES: tuple[Rule, ...] = (
    # The body. `valid_json` gets the raw bytes, all other checks the parsed object.
    Rule("body-json", "any", "the body is UTF-8 and one JSON object", "anthropics/claude-code#2155", "2025-06-16", "seen", any_.valid_json),
    Rule("body-surrogate", "any", "no lone surrogates in strings", "anthropics/claude-code#1939", "2025-06-11", "seen", any_.no_lone_surrogate),

    # OpenAI chat completions, and servers that speak it
    Rule("chat-required", "chat", "a model and at least one message", "platform.openai.com/docs/api-reference/chat/create", READ, "documented", c.required, "messages"),
    Rule("chat-unknown-parameter", "chat", "only parameters that exist", "QuantumNous/new-api#418", "2024-08-06", "seen", c.unknown_parameter, None, UNKNOWN),
    Rule("chat-roles", "chat", "known roles", "platform.openai.com/docs/api-reference/chat/create", READ, "documented", c.roles),
    Rule("chat-content", "chat", "content is a string or parts; null only beside tool calls", "docker/docker-agent#63", "2025-07-23", "seen", c.content, "messages"),
    Rule("chat-empty-tools", "chat", "tools and tool_calls are left out, not empty", "dnakov/anon-kode#20", "2025-03-06", "seen", c.empty_tool_lists, "tools"),
    Rule("chat-call-id", "chat", "call ids are 1 to 40 characters long", "vercel/ai#8132", "2025-08-18", "seen", c.call_ids),
    Rule("chat-unique-id", "chat", "ids of calls and answers are unique in a turn", "agno-agi/agno#5116", READ, "seen", c.unique_ids),
    Rule("chat-calls-answered", "chat", "every call is answered directly after it", "BerriAI/litellm#10083", "2025-04-17", "seen", c.calls_answered, "messages"),
    Rule("chat-orphan-tool", "chat", "a tool message answers a call of the turn before", "miurla/morphic#136", "2024-05-11", "seen", c.orphan_tool, "messages"),
    Rule("chat-tool-name", "chat", "tool names match ^[a-zA-Z0-9_-]{1,64}$", "openai/codex#8174", READ, "seen", c.tool_names),
    Rule("chat-history-arguments", "chat", "arguments in the history are a JSON object's text", "pydantic/pydantic-ai#7092", READ, "seen", c.history_arguments),
    Rule("chat-history-arguments-llamacpp", "chat", "the same at llama.cpp, which fails with a 500", "ggml-org/llama.cpp server, measured", READ, "seen", c.history_arguments_llamacpp, status=500),
    Rule("chat-tool-choice-without-tools", "chat", "no tool_choice without tools", "writer/writer-framework#1013", "2025-07-15", "seen", c.tool_choice_without_tools, "tool_choice"),
    Rule("chat-parallel-without-tools", "chat", "no parallel_tool_calls without tools", "Upsonic/Upsonic#323", READ, "seen", c.parallel_without_tools, "parallel_tool_calls"),
    Rule("chat-tool-choice-known", "chat", "tool_choice names an offered tool", "platform.openai.com/docs/guides/function-calling", READ, "documented", c.tool_choice_known, "tool_choice"),
    Rule("chat-json-word", "chat", "JSON mode needs the word json in a message", "ultimatejimmy/xray.koplugin#33", "2026-05-09", "seen", c.json_word, "messages"),
    Rule("chat-json-schema", "chat", "a response format has a known type; json_schema has a name and a schema", "platform.openai.com/docs/guides/structured-outputs", READ, "documented", c.json_schema, "response_format"),
    Rule("chat-strict-schema", "chat", "strict schemas close their objects and require every property", "vercel/ai#6484", "2025-05-26", "seen", c.strict_schema, "response_format"),
    Rule("chat-stream-options", "chat", "stream_options only with stream", "BerriAI/litellm#5803", "2024-09-20", "seen", c.stream_options, "stream_options"),
    Rule("chat-reasoning-max-tokens", "chat", "reasoning models refuse max_tokens", "griptape-ai/ComfyUI-Griptape#312", "2025-08-22", "seen", c.reasoning_max_tokens, "max_tokens", UNSUPPORTED),
    Rule("chat-reasoning-temperature", "chat", "reasoning models refuse a temperature other than 1", "gabrii/Cursor-Azure-GPT-5#33", "2025-09-15", "seen", c.reasoning_temperature, "temperature", "unsupported_value"),
    Rule("chat-reasoning-tools", "chat", "newer reasoning models refuse function tools unless the effort is none", "laurent22/joplin#16451", "2026-09-08", "seen", c.reasoning_tools, "reasoning_effort"),
    Rule("chat-alternation", "chat", "strict templates want user and assistant in turn", "vllm-project/vllm#6862", READ, "seen", c.alternation),
    Rule("chat-system-first", "chat", "strict templates want the system message first", "infiniflow/ragflow#11021", READ, "seen", c.system_first),
    Rule("chat-reasoning-echo", "chat", "some servers want reasoning_content back on tool turns", "decolua/9router#355", READ, "seen", c.reasoning_echo),

    # OpenAI Responses
    Rule("responses-required", "responses", "a model and an input", "platform.openai.com/docs/api-reference/responses/create", READ, "documented", r.required),
    Rule("responses-input-empty", "responses", "the input is not empty", "platform.openai.com/docs/api-reference/responses/create", READ, "documented", r.input_not_empty, "input"),
    Rule("responses-unknown-parameter", "responses", "only parameters that exist", "platform.openai.com/docs/api-reference/responses/create", READ, "documented", r.unknown_parameter, None, UNKNOWN),
    Rule("responses-item-field", "responses", "only fields that an input item has: no output-only ones", "1jehuang/jcode#1028", "2026-08-21", "seen", r.unknown_item_field, None, UNKNOWN),
    Rule("responses-roles", "responses", "items have a known type or role", "platform.openai.com/docs/api-reference/responses/create", READ, "documented", r.roles),
    Rule("responses-content-type", "responses", "input_text for what goes in, output_text for what the model said", "MervinPraison/PraisonAI#3934", "2026-08-14", "seen", r.content_types, "input", "invalid_value"),
    Rule("responses-call-id", "responses", "call_id is 1 to 64 characters long", "experientiallabs/experiential#801", "2026-09-05", "seen", r.call_ids, "input"),
    Rule("responses-unique-item", "responses", "no item twice", "vercel/ai#13307", "2026-03-10", "seen", r.unique_items, "input"),
    Rule("responses-item-id", "responses", "item ids begin with their kind's prefix", "jlcodes99/cockpit-tools#2090", "2026-08-26", "seen", r.item_ids, "input"),
    Rule("responses-output-has-call", "responses", "an output answers a call that came before", "cline/cline#9288", "2026-02-13", "seen", r.output_has_call, "input"),
    Rule("responses-call-has-output", "responses", "every call has an output", "platform.openai.com/docs/guides/function-calling", READ, "documented", r.call_has_output, "input"),
    Rule("responses-tool-name", "responses", "tool names match ^[a-zA-Z0-9_-]{1,64}$", "openai/codex#8174", READ, "seen", r.tool_names),
    Rule("responses-tool-choice-without-tools", "responses", "no forced tool without tools", "platform.openai.com/docs/guides/function-calling", READ, "documented", r.tool_choice_without_tools, "tool_choice"),
    Rule("responses-tool-choice-known", "responses", "tool_choice names an offered tool", "platform.openai.com/docs/guides/function-calling", READ, "documented", r.tool_choice_known, "tool_choice"),
    Rule("responses-json-word", "responses", "JSON mode needs the word json in the input", "platform.openai.com/docs/guides/structured-outputs", READ, "documented", r.json_word, "input"),
    Rule("responses-json-schema", "responses", "text.format has a known type; json_schema has a name and a schema", "jamesrochabrun/SwiftOpenAI#150", "2025-06-19", "seen", r.json_schema, "text.format"),
    Rule("responses-strict-schema", "responses", "strict schemas close their objects and require every property", "mavam/pi-web-providers#14", "2026-04-15", "seen", r.strict_schema, "text.format.schema"),
    Rule("responses-reasoning-followed", "responses", "a reasoning item is followed by its item", "openai/openai-node#1567", "2025-07-01", "seen", r.reasoning_followed, "input"),
    Rule("responses-reasoning-before", "responses", "an item made with reasoning comes with it", "continuedev/continue#12620", "2026-06-13", "seen", r.reasoning_before, "input"),
    Rule("responses-reasoning-encrypted", "responses", "without storage, reasoning comes back encrypted", "anomalyco/opencode#8987", "2026-01-16", "seen", r.reasoning_encrypted, "input"),
    Rule("responses-encrypted-intact", "responses", "encrypted reasoning is unchanged", "openai/codex#8145", "2025-12-16", "seen", r.encrypted_intact, None, "invalid_encrypted_content"),
    Rule("responses-reasoning-summary", "responses", "a reasoning item keeps its summary, even an empty one", "newo-ether/Agora#141", "2026-09-21", "seen", r.reasoning_summary, "input"),
    Rule("responses-reasoning-temperature", "responses", "reasoning models refuse a temperature other than 1", "OpenHands/software-agent-sdk#992", "2025-11-02", "seen", r.reasoning_temperature, "temperature", UNSUPPORTED),

    # Anthropic Messages
    Rule("anthropic-required", "anthropic", "model, messages and max_tokens are required", "platform.claude.com/docs/en/api/messages", READ, "documented", a.required),
    Rule("anthropic-unknown-parameter", "anthropic", "only parameters that exist", "amrit110/oli#7", "2025-03-17", "seen", a.unknown_parameter),
    Rule("anthropic-extra-field", "anthropic", "messages and blocks have no fields of their own", "RooCodeInc/Roo-Code#11429", "2026-02-12", "seen", a.extra_fields),
    Rule("anthropic-roles", "anthropic", "roles are user and assistant; system text goes on top", "Maol-1997/cursor-claude-connector#3", "2025-07-17", "seen", a.roles),
    Rule("anthropic-first-user", "anthropic", "the first message is the user's", "lobehub/lobehub#1601", "2024-03-16", "seen", a.first_is_user),
    Rule("anthropic-empty-message", "anthropic", "no message without content", "anthropics/claude-code#4074", "2025-07-21", "seen", a.no_empty_message),
    Rule("anthropic-empty-text", "anthropic", "no empty text block, inside tool results neither", "anthropics/claude-code#59812", "2026-05-16", "seen", a.no_empty_text),
    Rule("anthropic-blank-text", "anthropic", "no blank text block", "anthropics/claude-code#23440", "2026-02-05", "seen", a.no_blank_text),
    Rule("anthropic-system-text", "anthropic", "no empty or blank system block", "vellum-ai/vellum-assistant#30712", "2026-05-14", "seen", a.system_text),
    Rule("anthropic-use-id", "anthropic", "tool_use ids match ^[a-zA-Z0-9_-]+$", "maximhq/bifrost#5097", "2026-07-10", "seen", a.use_ids),
    Rule("anthropic-unique-use", "anthropic", "tool_use ids are unique in the whole conversation", "anthropics/claude-code#28515", "2026-02-25", "seen", a.unique_uses),
    Rule("anthropic-use-input", "anthropic", "tool_use input is an object", "anthropics/claude-code#6695", "2025-08-28", "seen", a.use_input),
    Rule("anthropic-uses-answered", "anthropic", "every tool_use is answered in the next message", "anthropics/claude-code#8210", "2025-09-26", "seen", a.uses_answered),
    Rule("anthropic-results-first", "anthropic", "tool results stand before any text in their message", "shareAI-lab/learn-claude-code#55", "2026-03-06", "seen", a.results_first),
    Rule("anthropic-result-has-use", "anthropic", "a tool_result answers a tool_use of the message before", "anthropics/claude-code#18947", "2026-01-18", "seen", a.result_has_use),
    Rule("anthropic-one-result", "anthropic", "one result per tool_use", "QwenLM/qwen-code#8163", "2026-07-30", "seen", a.one_result_per_use),
    Rule("anthropic-tool-name", "anthropic", "tool names match ^[a-zA-Z0-9_-]{1,128}$", "home-assistant/core#147760", "2025-06-29", "seen", a.tool_names),
    Rule("anthropic-unique-tool", "anthropic", "tool names are unique", "anthropics/claude-code#10687", "2025-10-31", "seen", a.unique_tools),
    Rule("anthropic-tool-schema", "anthropic", "a tool has an input_schema of type object", "platform.claude.com/docs/en/agents-and-tools/tool-use/overview", READ, "documented", a.tool_schema),
    Rule("anthropic-tool-choice-form", "anthropic", "tool_choice is an object with a type", "maximhq/bifrost#55", "2025-06-04", "seen", a.tool_choice_form),
    Rule("anthropic-tool-choice-without-tools", "anthropic", "no tool_choice without tools", "ayunis-core/ayunis-core#813", "2026-06-15", "seen", a.tool_choice_without_tools),
    Rule("anthropic-tool-choice-known", "anthropic", "tool_choice names an offered tool", "langchain-ai/langchainjs#8928", "2025-09-11", "seen", a.tool_choice_known),
    Rule("anthropic-no-prefill", "anthropic", "newer models want the last message to be the user's", "ericc-ch/copilot-api#261", "2026-06-08", "seen", a.no_prefill),
    Rule("anthropic-trailing-blank", "anthropic", "a final assistant text has no white space at its end", "tailcallhq/forgecode#1872", "2025-11-08", "seen", a.no_trailing_blank),
    Rule("anthropic-no-sampling", "anthropic", "newer models refuse temperature, top_p and top_k", "altic-dev/FluidVoice#285", "2026-04-17", "seen", a.no_sampling),
    Rule("anthropic-thinking-type", "anthropic", "newer models think adaptively only, older ones with a budget only", "earendil-works/pi#3297", "2026-04-16", "seen", a.thinking_type),
    Rule("anthropic-thinking-forced-tool", "anthropic", "no thinking beside a forced tool", "mastra-ai/mastra#7507", "2025-09-05", "seen", a.thinking_forced_tool),
    Rule("anthropic-thinking-budget", "anthropic", "the thinking budget is 1,024 or more, and below max_tokens", "liuw1535/antigravity2api-nodejs#149", "2026-02-10", "seen", a.thinking_budget),
    Rule("anthropic-thinking-temperature", "anthropic", "temperature is 1 beside thinking", "mnfst/modelparams.dev#214", "2026-08-09", "seen", a.thinking_temperature),
    Rule("anthropic-thinking-first", "anthropic", "with thinking on, the turn whose tools are answered starts with its thinking", "anomalyco/opencode#3077", READ, "seen", a.thinking_first),
    Rule("anthropic-thinking-unchanged", "anthropic", "thinking goes back unchanged with its signature", "anthropics/claude-code#63203", "2026-05-28", "seen", a.thinking_unchanged),
)
# fmt: on


@dataclass(frozen=True, slots=True)
class Refusal:
    """A broken rule, and the message the server answers with."""

    rule: Rule
    message: str


def first_broken(dialect: str, body: bytes, request: Any) -> Refusal | None:
    """The first rule that a request breaks; `request` is None where the body could not be parsed."""
    for rule in RULES:
        if rule.id == "body-json":
            message = rule.check(body)
        elif request is None or rule.dialect not in ("any", dialect):
            continue
        else:
            message = rule.check(request)
        if message:
            return Refusal(rule, message)
    return None
