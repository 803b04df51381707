"""What `dagwright experiment` can be told: argparse alone, for a quick start."""

from __future__ import annotations

from typing import Any


def experiment_parsers(actions: Any, everywhere: Any, modelled: Any, tooled: Any, quick: Any) -> None:
    """Adds the actions. `everywhere`, `modelled`, `tooled`, `quick` hold the options that commands share."""
    _run(actions, [everywhere, modelled, tooled, quick])
    _grade(actions, [everywhere, modelled, quick])
    _report(actions, [everywhere])
    _fit(actions, [everywhere])
    _compare(actions, [everywhere])


def _action(actions: Any, name: str, parents: list[Any], told: str, description: str) -> Any:
    return actions.add_parser(name, parents=parents, help=told, description=description, allow_abbrev=False)


def _run(actions: Any, parents: list[Any]) -> None:
    run = _action(
        actions, "run", parents, "run an experiment, or go on with it",
        "Runs the tasks by each arm, judges the answers and reports. The same command goes on with what was "
        "interrupted. Exit codes: 0 done, 2 usage or configuration, 3 something could not be run, 4 the run's budget "
        "is used up, 130 interrupted.",
    )  # fmt: skip
    run.add_argument("file", metavar="FILE.toml", help="the experiment")
    run.add_argument("--output", metavar="DIR", help="the run's folder (default: runs/NAME)")
    run.add_argument("--data", metavar="PATH", help="what {data} stands for in the file's paths")
    run.add_argument("--calls", metavar="FILE", help="the call cache to use (default: calls.sqlite in the folder)")
    run.add_argument(
        "--budget",
        metavar="AMOUNT",
        dest="run_budget",
        help="what the whole run may cost at most, instead of the file's",
    )
    run.add_argument("--concurrency", metavar="N", help="cells at once, instead of the file's")
    run.add_argument("--no-report", action="store_true", help="only run: neither judge nor report")


def _grade(actions: Any, parents: list[Any]) -> None:
    grade = _action(
        actions, "grade", parents, "judge a run's answers again",
        "Judges the answers of a run's folder again, with its grader or another one. No task is run; only a judge "
        "calls a model, and not for what it was asked before. Exit codes: 0 done, 2 usage or configuration, 3 some "
        "answers could not be judged.",
    )  # fmt: skip
    grade.add_argument("folder", metavar="DIR", help="the run's folder")
    grade.add_argument(
        "--grader",
        metavar="GRADER",
        help="another grader, which the run has from then on: its name, a table such as "
        "'{use=\"numeric\", tolerance=0.01}', or a TOML file with a table [grader]",
    )
    grade.add_argument("--calls", metavar="FILE", help="the call cache to use (default: calls.sqlite in the folder)")
    grade.add_argument("--no-report", action="store_true", help="only judge: do not report")


def _report(actions: Any, parents: list[Any]) -> None:
    report = _action(
        actions, "report", parents, "report on a run",
        "Reports on a run's folder: on the terminal, and into the folder as Markdown, HTML, CSV and JSON with plots. "
        "With --format or --output only that is written. Nothing is run and nothing is judged.",
    )  # fmt: skip
    report.add_argument("folder", metavar="DIR", help="the run's folder")
    report.add_argument("--format", choices=["text", "markdown", "html", "csv", "json"], help="write this form alone")
    report.add_argument("--output", metavar="FILE", help="write it there; without --format the form goes by its name")
    margin = "points (hundredths) that a quality may be lower and still do as well (default: 2)"
    report.add_argument("--margin", metavar="POINTS", help=margin)


def _fit(actions: Any, parents: list[Any]) -> None:
    fit = _action(
        actions, "fit", parents, "make a `learned` routing policy",
        "Makes a routing policy of what two arms of a run made of the same tasks: from a task's text and kind, before "
        "any call, it tells how much the stronger model gains. Half of the tasks are held back; they tell its worth.",
    )  # fmt: skip
    fit.add_argument("folder", metavar="DIR", help="the run's folder")
    fit.add_argument("--weak", metavar="ARM", required=True, help="the arm of the weaker, cheaper model")
    fit.add_argument("--strong", metavar="ARM", required=True, help="the arm of the stronger model")
    fit.add_argument(
        "--weak-model", metavar="NAME", help="the model or role to choose for it (default: the arm's model)"
    )
    fit.add_argument("--strong-model", metavar="NAME", help="the model or role to choose for it (default: the arm's)")
    fit.add_argument("--output", metavar="FILE", help="the policy's file (default: policy.json in the folder)")
    wish = fit.add_mutually_exclusive_group()
    wish.add_argument("--share", metavar="PART", help="what part of the tasks the strong model does (default: 0.5)")
    wish.add_argument(
        "--keep", metavar="PART", help="what part of the strong model's lead in quality is kept, such as 0.95"
    )
    wish.add_argument(
        "--worth", metavar="USD", help="what a right answer is worth: the strong model where it is worth it"
    )
    held = fit.add_mutually_exclusive_group()
    held.add_argument("--split", choices=["half"], default="half", help="hold back half of the tasks (the default)")
    held.add_argument(
        "--all", action="store_true", help="fit on all tasks; cross-validation alone tells how good it is"
    )
    fit.add_argument("--seed", metavar="N", help="draws the halves and folds (default: the experiment's seed)")


def _compare(actions: Any, parents: list[Any]) -> None:
    compare = _action(
        actions, "compare", parents, "tell two runs apart",
        "Tells two runs apart: arms of the same name, task by task. What changed in quality, cost and time, how sure "
        "that is, and what can't be compared.",
    )  # fmt: skip
    compare.add_argument("folders", metavar="DIR", nargs=2, help="the runs' folders, the earlier one first")
    compare.add_argument("--format", choices=["text", "markdown", "json"], default="text", help="default: text")
