"""The command `dagwright`."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

from registry.errors import ConfigError, DagwrightError, UsageError

FAILED, USAGE, LOST, CANCELLED = 1, 2, 75, 130
OWN_MODULES = ("run", "plan", "serve", "worker", "db", "keys", "jobs", "fork", "replay", "batch", "experiment")
"""Commands that have a module in `executor/command/` of their name, and in it a function of their name."""


class _Parser(argparse.ArgumentParser):
    """Says what is wrong by an exception, so that it can be told as JSON too."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}\n{self.format_usage().strip()}")

    def print_help(self, file: Any = None) -> None:
        from .command.out import note, say

        (note if file is sys.stderr else say)(self.format_help().rstrip("\n"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code: 0 completed, 1 failed, 2 usage or configuration, 3 partial, 4 budget
    exceeded, 5 waits for a decision, 75 lost ownership, 130 cancelled."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    as_json = "--json" in words[: words.index("--")] if "--" in words else "--json" in words
    from .command.out import abandon, forgiving

    forgiving()
    try:
        return _run(words)
    except (ConfigError, UsageError) as error:
        return _complain(error, USAGE, as_json=as_json)
    except DagwrightError as error:
        return _complain(error, LOST if error.code == "ownership_lost" else FAILED, as_json=as_json)
    except KeyboardInterrupt:
        return _complain(_CancelledError(), CANCELLED, as_json=as_json)
    except BrokenPipeError:  # whoever read our output is gone: no use in saying so
        for stream in (sys.stdout, sys.stderr):
            abandon(stream)
        return FAILED


class _CancelledError(DagwrightError):
    """Cancelled."""

    code = "cancelled"


def _run(words: list[str]) -> int:
    parser = _parser()
    options = parser.parse_args(words)
    if options.command is None:
        parser.print_help(sys.stderr)
        return USAGE
    from .command import log

    log.configure(options.log_level or "warning")
    return asyncio.run(_dispatch(options))


async def _dispatch(options: argparse.Namespace) -> int:
    """Each command's module is imported only when it is called, so that start-up stays quick."""
    name = options.command
    if name in OWN_MODULES:
        module: Any = import_module(f"executor.command.{name}")
        code: int = await getattr(module, name)(options)
        return code
    match name:
        case "demo" | "demo-model":
            from .command.demo import demo, demo_model

            return await (demo(options) if name == "demo" else demo_model(options))
        case "models":
            from .command.info import models

            return await models(options)
        case "tools":
            from .command.info import tools

            return await tools(options)
        case _:
            from .command.info import config_check

            return config_check(options)


def _complain(error: DagwrightError, code: int, *, as_json: bool) -> int:
    """Tells what went wrong on stderr, and with `--json` as an object on stdout."""
    from .command.out import note, say_json

    if as_json:
        problems = getattr(error, "problems", None)
        told = {} if problems is None else {"problems": [list(problem) for problem in problems]}
        say_json({"error": {"code": error.code, "message": str(error), **told}})
    note(f"dagwright: {error}")
    return code


def _parser() -> argparse.ArgumentParser:
    from .command.experiment_parsers import experiment_parsers

    parser = _Parser(
        prog="dagwright",
        description="Turns a goal into finished work: a plan of steps, each run by an agent on the model that fits it.",
        epilog="Exit codes: 0 completed, 1 failed, 2 usage, configuration or no model, 3 partial, 4 budget exceeded, "
        "5 waits for a decision, 75 lost ownership, 130 cancelled.",
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    everywhere = _Parser(add_help=False)
    everywhere.add_argument("--json", action="store_true", help="print one JSON object on stdout at the end")
    everywhere.add_argument("--settings", metavar="FILE", help="dagwright.toml to use")
    everywhere.add_argument(
        "--log-level",
        choices=["debug", "info", "warning", "error"],
        help="what is logged on stderr (default: the setting where there is one, else warning)",
    )
    modelled = _Parser(add_help=False)
    modelled.add_argument("--models", metavar="FILE", help="models.toml to use")
    tooled = _Parser(add_help=False)
    tooled.add_argument("--workspace", metavar="DIR", help="folder the file tools may use (without it: no file tools)")
    tooled.add_argument("--allow", metavar="HOST:PORT", action="append", help="private address that may be fetched")
    planning = _Parser(add_help=False)
    planning.add_argument("--max-steps", metavar="N", help="steps a plan may have")
    quick = _Parser(add_help=False)
    quick.add_argument(
        "--quick-start",
        action="store_true",
        help="with no model configured, fetch the local demonstration model (once, 1.1 GB) and use it",
    )

    _run_parser(commands, [everywhere, modelled, tooled, planning, quick])
    plan = _command(commands, "plan", [everywhere, modelled, tooled, planning, quick], "plan a goal, run nothing")
    plan.add_argument("goal", metavar="GOAL")
    plan.add_argument("--format", choices=["text", "mermaid", "dot"], default="text")
    _command(commands, "models", [everywhere, modelled, quick], "the models there are, their roles and abilities")
    tools = _command(commands, "tools", [everywhere, tooled], "the tools that steps may use")
    tools.add_argument("--hooks", action="store_true", help="list the declared hooks instead, in the order they run")
    config = _actions(commands, "config", "settings")
    _command(config, "check", [everywhere, modelled],
             "each setting, its value and where it comes from; reads the models' file, calls no model")  # fmt: skip
    _service_parsers(commands, everywhere, [everywhere, modelled, tooled])
    _keys_parser(commands, everywhere)
    _jobs_parser(commands, everywhere)
    _again_parsers(commands, everywhere, [everywhere, modelled, tooled])
    _batch_parser(commands, everywhere)
    experiment_parsers(
        _actions(commands, "experiment", "the same tasks by several arms, judged alike"),
        everywhere, modelled, tooled, quick,
    )  # fmt: skip
    demo = _command(commands, "demo", [everywhere], "replay a recorded run, without any model")
    demo.add_argument("--events", action="store_true", help="print the events as JSON lines")
    model = _actions(commands, "demo-model", "the local demonstration model")
    _command(model, "install", [everywhere], "fetch it: about 1.1 GB, once")
    _command(model, "status", [everywhere], "whether it is installed, and where (exit code 1: it is not)")
    return parser


def _service_parsers(commands: Any, everywhere: _Parser, parents: list[_Parser]) -> None:
    working = _Parser(add_help=False)
    working.add_argument("--workers", metavar="N", help="worker processes (default: one for two cores)")
    serve = _command(commands, "serve", [*parents, working], "the service, with its workers, until it is told to end")
    serve.description = (
        "Runs the service and its workers. The jobs are kept in the PostgreSQL of DATABASE_URL; without it one is "
        "started in the data folder, which needs the extra `embedded`. Without API keys it listens on this machine's "
        "own address only."
    )
    serve.add_argument("--host", metavar="ADDRESS", help="address to listen on (default: 127.0.0.1)")
    serve.add_argument("--port", metavar="N", help="port to listen on (default: 8080; 0: any that is free)")
    serve.add_argument("--quick-start", action="store_true",
                       help="with no model configured, fetch the local demonstration model (once, 1.1 GB)")  # fmt: skip
    worker = _command(commands, "worker", [*parents, working], "worker processes for a service's database, on any host")
    worker.description = (
        "Takes jobs from the PostgreSQL of DATABASE_URL and runs them, on any host, with the same models.toml and "
        "dagwright.toml as the service. The tables are made by `serve`, or by `db migrate`."
    )
    db = _actions(commands, "db", "the schema of the service's database")
    _command(db, "migrate", [everywhere], "bring it up to this version")
    _command(db, "status", [everywhere], "whether it is this version's (exit code 1: it is not)")


def _keys_parser(commands: Any, everywhere: _Parser) -> None:
    keys = _actions(commands, "keys", "the service's API keys: with the first one every request needs one")
    create = _command(keys, "create", [everywhere], "make a key; it is shown this once, on stdout")
    create.add_argument("name", metavar="NAME", help="whose it is")
    create.add_argument("--requests-per-minute", metavar="N", help="requests it may send to each server")
    create.add_argument("--running-jobs", metavar="N", help="jobs it may have that have not ended")
    create.add_argument("--usd-per-day", metavar="USD", help="what its jobs of the last 24 hours may have cost")
    _command(keys, "list", [everywhere], "the keys there are, without the keys themselves")
    revoke = _command(keys, "revoke", [everywhere], "make a key invalid, for good")
    revoke.add_argument("id", metavar="ID", help="key_… as listed")


def _jobs_parser(commands: Any, everywhere: _Parser) -> None:
    jobs = _actions(commands, "jobs", "the service's jobs, those of all keys")
    listing = _command(jobs, "list", [everywhere], "the latest jobs, newest first")
    listing.add_argument("--limit", metavar="N", help="so many at most (default: 20)")
    listing.add_argument("--status", metavar="STATUS", help="only these")
    for name, told in (
        ("show", "a job as it stands; the exit code tells how it ended"),
        ("events", "a job's events so far, as JSON lines"),
        ("cancel", "end a job"),
    ):
        _command(jobs, name, [everywhere], told).add_argument("id", metavar="ID", help="job_…")


def _again_parsers(commands: Any, everywhere: _Parser, parents: list[_Parser]) -> None:
    fork = _command(commands, "fork", parents, "run a step of an ended job again, in a new job")
    fork.description = (
        "Makes a new job of an ended one: a step runs again, then what depends on it; the other steps' results are "
        "kept, and the plan is not changed. A job that `run` ran "
        "(kept where DATABASE_URL is set) is run here, one of the service's by its workers."
    )
    fork.add_argument("id", metavar="JOB", help="job_…")
    fork.add_argument("--step", metavar="ID", required=True, help="the step that runs again")
    fork.add_argument("--only", action="store_true", help="that step alone: what depends on it keeps its results")
    fork.add_argument("--model", metavar="NAME", help="the model, or the role, for that step")
    fork.set_defaults(events=False, plain=False)
    replay = _command(commands, "replay", [everywhere], "run an ended job again from its log, without any model")
    replay.description = (
        "Runs an ended job again from its log: no model is called, no tool is run. Says where it departs from what the "
        "log tells. Exit codes: 0 it went the same way, 1 it departs."
    )
    replay.add_argument("id", metavar="JOB", help="job_…")


def _batch_parser(commands: Any, everywhere: _Parser) -> None:
    batch = _command(commands, "batch", [everywhere], "thousands of goals through a running service")
    batch.description = (
        "Sends a file of JSON lines, each with custom_id and goal, to a running service, waits, and prints a line for "
        "each as it ended. The variable DAGWRIGHT_API_KEY holds the key. Ctrl-C leaves the batch running. Exit codes: "
        "0 all succeeded, 3 some, 1 none, 130 some were cancelled."
    )
    batch.add_argument("file", metavar="FILE.jsonl", nargs="?", help="- for stdin")
    batch.add_argument("--mode", choices=["run", "plan"], help="whole jobs (the default), or plans only")
    batch.add_argument("--output", metavar="FILE", help="where the results go (default: stdout)")
    batch.add_argument("--url", metavar="URL", help="the service (default: where `serve` listens on this machine)")
    batch.add_argument("--detach", action="store_true", help="don't wait: the batch's id is told on stderr")
    batch.add_argument("--id", metavar="ID", help="a batch that was sent before, instead of a file")
    batch.add_argument("--cancel", action="store_true", help="end that batch")


def _command(commands: Any, name: str, parents: list[_Parser], told: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name, parents=parents, help=told, description=f"{told[0].upper()}{told[1:]}.", allow_abbrev=False
    )
    return parser


def _actions(commands: Any, name: str, told: str) -> Any:
    return _command(commands, name, [], told).add_subparsers(dest="action", metavar="ACTION", required=True)


def _run_parser(commands: Any, parents: list[_Parser]) -> None:
    run = _command(commands, "run", parents, "plan a goal and run it to its end")
    run.description = (
        "Plans a goal and runs it to its end. The answer goes to stdout, progress to stderr. Ctrl-C stops with grace, "
        "twice at once; a line typed meanwhile is added to the goal, or answers a call that waits for approval."
    )
    run.add_argument("goal", metavar="GOAL", nargs="?")
    run.add_argument("--plan", metavar="FILE", help="run this plan (JSON; - for stdin) instead of making one")
    run.add_argument("--mode", choices=["auto", "dag", "react"],
                     help="plan it, let one agent do it, or let a model decide (auto, the default)")  # fmt: skip
    run.add_argument("--answer-mode", metavar="MODE", help="how the answer is made: synthesis, or direct")
    run.add_argument("--events", action="store_true",
                     help="print the events as JSON lines on stdout; with --json the job is the last line")  # fmt: skip
    run.add_argument("--max-concurrency", metavar="N", help="steps at once")
    run.add_argument("--max-iterations", metavar="N", help="model calls of one agent")
    run.add_argument("--max-replan-rounds", metavar="N", help="executions, the first included")
    run.add_argument("--step-timeout", metavar="SECONDS", help="how long a step may run, all its attempts together")
    run.add_argument("--plain", action="store_true", help="plain lines of progress also on a terminal")
    run.add_argument("--budget", metavar="AMOUNT",
                     help="what the job may cost at most: 0.50usd, 20k tokens, 10m, or several, by commas")  # fmt: skip
    run.add_argument("--routing", metavar="POLICY",
                     help="which model does a step: hint (the default), fixed:MODEL, cascade, budget, learned:FILE, a "
                          "table in quotes, package.module:Class, or one of the settings' policies")  # fmt: skip
    run.add_argument("--role", metavar="ROLE=MODEL", action="append", help="the model for a role, such as smart=large")


if __name__ == "__main__":
    sys.exit(main())
