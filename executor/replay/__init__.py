"""Replay: a job is run again from its log alone, without a model, a tool or a hook, and shows where it departs.

`described.py` says what the log's first event must hold for that. `script.py` reads a log as what happened to the job
from outside, in order: replies, ends of steps, what was said. `stage.py` gives a new run exactly that, and compares
what the run tells with what the log says. `actors.py` are the stand-ins for models, tools, time and budget.
"""
