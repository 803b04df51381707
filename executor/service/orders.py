"""From a request to a job: what is asked for is checked against what there is, before anything is stored."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import structlog

from executor.fork import Fork, ForkError, Told, forked
from executor.routing_settings import asked_by_stranger, is_declared, routed_models
from executor.settings import settings_of_job
from executor.store.database import Row, cleaned
from executor.store.jobs import NewJob
from planner.checks import PlanError
from planner.parse import parse_plan
from planner.plan import Plan
from registry.budget import Budget
from registry.errors import ConfigError, UsageError
from registry.routing_config import policy_of
from registry.text import cut_end

from .problems import ProblemError
from .schemas import BudgetIn, ForkIn, JobIn, PlanningIn, Strict
from .state import Offer

if TYPE_CHECKING:
    from executor.settings_model import Settings

log = structlog.get_logger(__name__)

SHOWN = 20
"""Names that a problem lists of what there is."""


def ordered(body: PlanningIn, offer: Offer, settings: Settings) -> NewJob:
    """The job that a request comes to: a JobIn's runs, any other's only plans. Raises the problem that is in the way:
    422, and 503 where no model is configured."""
    if not offer.models.names():
        raise ProblemError(
            503, "no_model", "No model is configured",
            "no job can be run: name models in models.toml or in the environment, and start the service again",
        )  # fmt: skip
    _known(body.models, offer.models.names(), "models", "model")
    _known(body.tools, offer.tools.names(), "tools", "tool")
    request: dict[str, Any] = {
        "models": body.models,
        "tools": body.tools,
        "budget": _budget(body.budget, body.models, offer),
    }
    request["options"] = None if body.options is None else body.options.model_dump(exclude_none=True)
    _steps_allowed(request["options"], settings)
    _routable(request["options"] or {}, body.models, offer, settings)
    request["history"] = None if body.history is None else [message.model_dump() for message in body.history]
    goal, mode, webhook = body.goal, "dag", None
    if isinstance(body, JobIn):
        plan = None if body.plan is None else _plan(body, offer, settings)
        goal = goal if goal.strip() or plan is None else plan.goal
        request |= {"plan": None if plan is None else plan.to_json(), "answer_mode": body.answer_mode}
        mode, webhook = body.mode if plan is None else "dag", body.webhook
    wanted = {name: value for name, value in request.items() if value is not None}
    return NewJob(
        _goal(goal, settings),
        mode,
        "run" if isinstance(body, JobIn) else "plan",
        cleaned(wanted),
        cleaned(body.metadata or {}),
        webhook=webhook,
    )


def fork_ordered(body: ForkIn, parent: Row, told: Told, offer: Offer) -> NewJob:
    """The job that a fork of an ended one comes to. Raises the problem that is in the way: 409 where that job has not
    ended, else 422."""
    asked = parent["request"]
    _known(asked.get("models"), offer.models.names(), "models", "model")
    _known(asked.get("tools"), offer.tools.names(), "tools", "tool")
    models = offer.models.subset(asked["models"]) if asked.get("models") else offer.models
    budget = _budget(body.budget, asked.get("models"), offer)
    metadata = None if body.metadata is None else cleaned(body.metadata)
    fork = Fork(cleaned(body.step), body.descendants, body.model, budget, metadata, body.webhook)
    try:
        return forked(parent, told, fork, models.hints())
    except ForkError as error:
        if error.field is not None:
            raise invalid(error.code, error.title, str(error), error.field) from None
        raise ProblemError(409 if error.code == "job_running" else 422, error.code, error.title, str(error)) from None


def hash_of(route: str, body: Strict) -> bytes:
    """What tells two requests under one idempotency key apart: where they go and what they say, however it is spelt."""
    said = json.dumps([route, body.model_dump(mode="json", exclude_unset=True)], sort_keys=True)
    return hashlib.sha256(said.encode("utf-8", "surrogatepass")).digest()


def invalid(code: str, title: str, detail: str, name: str) -> ProblemError:
    """A value that can't be taken, and the field it stands in."""
    return ProblemError(422, code, title, f"{name}: {detail}", problems=[(code, [name], detail)])


def _goal(goal: str, settings: Settings) -> str:
    text: str = cleaned(goal)
    if not text.strip():
        raise invalid("goal_empty", "The goal is empty", "say what is to be done", "goal")
    if len(text) > settings.max_goal_chars:
        detail = f"has {len(text):,} characters, at most {settings.max_goal_chars:,} are taken (setting max_goal_chars)"
        raise invalid("goal_too_long", "The goal is too long", detail, "goal")
    return text


def _known(given: list[str] | None, known: tuple[str, ...], field: str, kind: str) -> None:
    unknown = [name for name in given or () if name not in known]
    if unknown:
        listed = ", ".join(known[:SHOWN]) or "none"
        detail = f"there is no {kind} {cut_end(unknown[0], 100)!r}; there are: {listed}"
        raise invalid(f"unknown_{kind}", f"There is no such {kind}", detail, field)


def _budget(given: BudgetIn | str | float | None, names: list[str] | None, offer: Offer) -> str | None:
    if given is None:
        return None
    try:
        budget = Budget.of(given if isinstance(given, str | float | int) else given.model_dump(exclude_none=True))
    except UsageError as error:
        raise invalid("budget_invalid", "The budget is not valid", cut_end(str(error), 500), "budget") from None
    for name in names or offer.models.names() if budget.usd is not None else ():
        if offer.models.get(name).price is None:
            detail = f"the model {name!r} has no known price, so that a limit in USD can't be kept"
            raise invalid("budget_unpriced", "The budget can't be kept", detail, "budget")
    return str(budget)


def _steps_allowed(options: dict[str, Any] | None, settings: Settings) -> None:
    asked = (options or {}).get("max_steps", 0)
    if asked > settings.max_steps:
        detail = f"{asked} is more than the {settings.max_steps} that the service allows (setting max_steps)"
        raise invalid("too_many_steps", "The plan may not have so many steps", detail, "options.max_steps")


def _routable(options: Mapping[str, Any], names: list[str] | None, offer: Offer, settings: Settings) -> None:
    """Whether the job's policy may be asked for, and can route among its models."""
    given = {name: options[name] for name in ("routing", "roles") if name in options}
    if not given and names is None:
        return  # the service's own, which was looked at when it began
    models = offer.models.subset(names) if names else offer.models
    for model in given.get("roles", {}).values():
        _known([model], models.names(), "options.roles", "model")
    if "routing" in given:
        _policy(given["routing"], settings.routing_policies)
    try:
        routed_models(settings_of_job(settings, given), models)
    except UsageError as error:
        field = "options.routing" if "routing" in given else "options.roles" if given else "models"
        raise _no_routing(str(error), field) from None
    except ConfigError as error:
        log.warning("policy_not_there", error=str(error))
        detail = "the policy that the operator has declared can't be had at the moment: tell the operator"
        raise _no_routing(detail, "options.routing") from None


def _policy(value: Any, policies: Mapping[str, Any]) -> None:
    """Whether a policy may be asked for by anybody, and is one."""
    try:
        why = asked_by_stranger(value, policies)
        if why is None and not is_declared(value, policies):
            policy_of(value)
    except UsageError as error:
        why = str(error)
    if why is not None:
        raise _no_routing(why, "options.routing")


def _no_routing(detail: str, field: str) -> ProblemError:
    return invalid("routing_invalid", "The job can't be routed like this", cut_end(detail, 1_000), field)


def _plan(body: JobIn, offer: Offer, settings: Settings) -> Plan:
    tools = offer.tools.names() if body.tools is None else body.tools
    most = (body.options and body.options.max_steps) or settings.max_steps
    try:
        return parse_plan(body.plan, tools=tools, models=offer.models.hints(), max_steps=most, goal=body.goal.strip())
    except PlanError as error:
        detail = cut_end(str(error), 4_000)
        if any(problem.code == "too_many_steps" for problem in error.problems):
            detail += " (setting max_steps)"
        raise ProblemError(422, error.code, error.title, detail, problems=error.to_json()) from None
