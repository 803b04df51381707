"""The command `dagwright`."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from typing import Any

from registry.errors import ConfigError, DagwrightError, UsageError

USAGE = 2
NOT_BUILT = ("serve", "worker", "batch", "experiment", "jobs", "keys", "replay", "fork", "db")
"""Commands of the design that do not exist yet; naming one says so."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code: 0 completed, 1 failed, 2 usage or configuration, 3 partial, 4 budget
    exceeded, 5 waits for a decision, 130 cancelled."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words and words[0] in NOT_BUILT:
        return _complain(UsageError(f"`dagwright {words[0]}` is not built yet"), as_json="--json" in words)
    parser = _parser()
    options = parser.parse_args(words)
    if getattr(options, "command", None) is None:
        parser.print_help(sys.stderr)
        return USAGE
    try:
        from .command import log

        log.configure(options)
        code = asyncio.run(_dispatch(options))
    except (ConfigError, UsageError) as error:
        return _complain(error, as_json=options.json)
    except DagwrightError as error:
        _complain(error, as_json=options.json)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        sys.stderr.close()  # whoever read our output is gone: no use in saying so
        return 1
    return code


async def _dispatch(options: argparse.Namespace) -> int:
    """Each command's module is imported only when it is called, so that start-up stays quick."""
    match options.command:
        case "run":
            from .command.run import run

            return await run(options)
        case "plan":
            from .command.plan import plan

            return await plan(options)
        case "demo" | "demo-model":
            from .command.demo import demo, demo_model

            return await (demo(options) if options.command == "demo" else demo_model(options))
        case "models":
            from .command.info import models

            return await models(options)
        case "tools":
            from .command.info import tools

            return tools(options)
        case _:
            from .command.info import config_check

            return config_check(options)


def _complain(error: DagwrightError, *, as_json: bool) -> int:
    if as_json:
        print(json.dumps({"error": {"code": error.code, "message": str(error)}}, ensure_ascii=False))
    print(f"dagwright: {error}", file=sys.stderr)
    return USAGE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dagwright",
        description="Turns a goal into finished work: a plan of steps, each run by an agent on the model that fits it.",
        epilog="Exit codes: 0 completed, 1 failed, 2 usage, configuration or no model, 3 partial, 4 budget exceeded, "
        "5 waits for a decision, 130 cancelled.",
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    everywhere = argparse.ArgumentParser(add_help=False)
    everywhere.add_argument("--json", action="store_true", help="print one JSON object on stdout at the end")
    everywhere.add_argument("--settings", metavar="FILE", help="dagwright.toml to use")
    everywhere.add_argument(
        "--log-level", choices=["debug", "info", "warning", "error"], help="what is logged (stderr)"
    )
    working = argparse.ArgumentParser(add_help=False, parents=[everywhere])
    working.add_argument("--models", metavar="FILE", help="models.toml to use")
    working.add_argument("--workspace", metavar="DIR", help="folder the file tools may use (without it: no file tools)")
    working.add_argument("--allow", metavar="HOST:PORT", action="append", help="private address that may be fetched")
    working.add_argument("--max-steps", type=int, metavar="N", help="steps a plan may have")
    quick = argparse.ArgumentParser(add_help=False)
    quick.add_argument("--quick-start", action="store_true",
                       help="with no model configured, fetch and use the local demonstration model")  # fmt: skip

    _run_parser(commands, [working, quick])
    plan = commands.add_parser("plan", parents=[working, quick], help="plan a goal, run nothing")
    plan.add_argument("goal", metavar="GOAL")
    plan.add_argument("--format", choices=["text", "mermaid", "dot"], default="text")
    commands.add_parser("models", parents=[working, quick], help="the models there are, their roles and abilities")
    commands.add_parser("tools", parents=[working], help="the tools that steps may use")
    config = commands.add_parser("config", help="settings").add_subparsers(
        dest="action", metavar="ACTION", required=True
    )
    config.add_parser("check", parents=[everywhere], help="each setting, its value and where it comes from")
    demo = commands.add_parser("demo", parents=[everywhere], help="replay a recorded run, without any model")
    demo.add_argument("--events", action="store_true", help="print the events as JSON lines")
    model = commands.add_parser("demo-model", help="the local demonstration model")
    model = model.add_subparsers(dest="action", metavar="ACTION", required=True)  # type: ignore[assignment]
    model.add_parser("install", parents=[everywhere], help="fetch it: about 1.1 GB, once")  # type: ignore[attr-defined]
    model.add_parser("status", parents=[everywhere], help="whether it is installed, and where")  # type: ignore[attr-defined]
    return parser


def _run_parser(commands: Any, parents: list[argparse.ArgumentParser]) -> None:
    run = commands.add_parser("run", parents=parents, help="plan a goal and run it to its end")
    run.add_argument("goal", metavar="GOAL", nargs="?")
    run.add_argument("--plan", metavar="FILE", help="run this plan (JSON) instead of making one")
    run.add_argument("--mode", choices=["auto", "dag", "react"], help="plan it, let one agent do it, or decide (auto)")
    run.add_argument("--answer-mode", choices=["synthesis", "direct"], help="how the answer is made")
    run.add_argument("--events", action="store_true", help="print the events as JSON lines on stdout")
    run.add_argument("--max-concurrency", type=int, metavar="N", help="steps at once")
    run.add_argument("--max-iterations", type=int, metavar="N", help="model calls of one agent")
    run.add_argument("--max-replan-rounds", type=int, metavar="N", help="executions, the first included")
    run.add_argument("--step-timeout", type=float, metavar="SECONDS")
    run.add_argument("--plain", action="store_true", help="plain lines of progress also on a terminal")
    run.add_argument("--budget", metavar="AMOUNT", help="not built yet: refused")


if __name__ == "__main__":
    sys.exit(main())
