"""`dagwright demo` and `demo-model`: a recorded run, and the local demonstration model."""

from __future__ import annotations

import argparse

from executor.demo.install import DemoPaths, demo_installed, install
from executor.demo.replay import read_recording, replay

from .live import LiveView, can_be_live
from .out import json_text, note, say, say_json, show
from .setup import data_dir, settings_of, show_progress
from .show import EventView, PlainView
from .view import account


async def demo(options: argparse.Namespace) -> int:
    """Replays the recording that comes with the package, labelled as such."""
    recording = read_recording()
    label = f"{recording.label}; nothing is run now"
    note(f"{label}\ngoal: {recording.goal}")
    view: PlainView
    if options.events:
        view = EventView()
    elif can_be_live() and not options.json:
        view = LiveView(label)
    else:
        view = PlainView()
    with view:
        await replay(recording, view.on_event)
    if options.json:
        data = {"recorded": label, "goal": recording.goal, **view.view.done}
        if options.events:
            say(json_text(data, indent=None))
        else:
            say_json(data)
    elif not options.events and not view.answered(view.view.text):
        say(f"[{label}]\n")
        show(view.view.done.get("answer") or view.view.text)
    if isinstance(view, LiveView) and view.view.done:
        note(f"\n{account(view.view.done)}")
    return 0


async def demo_model(options: argparse.Namespace) -> int:
    """Installs the demonstration model, or says whether it is installed (exit code 1: it is not)."""
    folder = data_dir(settings_of(options))
    if options.action == "install":
        await install(folder, show_progress)
    there = demo_installed(folder)
    gguf = DemoPaths.of(folder).model
    if options.json:
        say_json({"installed": there, "path": str(gguf)})
    else:
        say(f"{'installed' if there else 'not installed'}: {gguf}")
    return 0 if there else 1
