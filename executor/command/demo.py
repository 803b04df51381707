"""`dagwright demo` and `demo-model`: a recorded run, and the local demonstration model."""

from __future__ import annotations

import argparse
import json
import sys

from executor.demo.install import DemoPaths, demo_installed, install
from executor.demo.replay import read_recording, replay

from .setup import settings_of, show_progress
from .show import EventView, LiveView, PlainView


async def demo(options: argparse.Namespace) -> int:
    """Replays the recording that comes with the package, labelled as such."""
    recording = read_recording()
    label = f"recorded on {recording.date} with {recording.model}; nothing is run now"
    print(f"{label}\ngoal: {recording.goal}", file=sys.stderr)
    view: PlainView
    if options.events:
        view = EventView()
    elif sys.stderr.isatty() and sys.stdout.isatty() and not options.json:
        view = LiveView(label)
    else:
        view = PlainView()
    with view:
        await replay(recording, view.on_event)
    if options.json:
        print(json.dumps({"recorded": label, "goal": recording.goal, **view.view.done}, ensure_ascii=False, indent=1))
    elif not options.events and not view.answered:
        print(f"[{label}]\n\n{view.view.text}")
    return 0


async def demo_model(options: argparse.Namespace) -> int:
    """Installs the demonstration model, or says whether it is installed."""
    folder = settings_of(options).data_dir
    if options.action == "install":
        await install(folder, show_progress)
    there = demo_installed(folder)
    gguf = DemoPaths.of(folder).model
    if options.json:
        print(json.dumps({"installed": there, "path": str(gguf)}))
    else:
        print(f"{'installed' if there else 'not installed'}: {gguf}")
    return 0 if there else 1
