"""`dagwright experiment compare FOLDER FOLDER`: two runs told apart."""

from __future__ import annotations

import argparse

from executor.experiments.folder import Folder
from executor.experiments.report.compare import Run, compare, document_of_comparison
from executor.experiments.report.render_markdown import document_markdown
from executor.experiments.report.render_text import document_text
from registry.errors import UsageError

from .experiment_report import columns
from .out import say_json, show


async def experiment_compare(options: argparse.Namespace) -> int:
    """Says what changed from the first run to the second."""
    first, second = map(Folder.open, options.folders)
    if first.path.resolve() == second.path.resolve():
        raise UsageError(f"{first.path} is both of them: name two runs")
    names = (first.path.name, second.path.name)
    if names[0] == names[1]:
        names = (str(first.path), str(second.path))
    found = compare(*(
        Run(name, folder.experiment, folder.outcomes(), folder.grades())
        for name, folder in zip(names, (first, second), strict=True)
    ))  # fmt: skip
    if options.json or options.format == "json":
        say_json(found.to_json())
    elif options.format == "markdown":
        show(document_markdown(document_of_comparison(found)), end="")
    else:
        show(document_text(document_of_comparison(found), columns()), end="")
    return 0
