"""The demonstration: a small model for this machine's CPU, on the user's word, and the replay of a recorded run."""

from .install import DemoInstallError, demo_installed, install
from .profile import Use, adapted, profile
from .replay import Recording, read_recording, replay
from .serve import HEADER, demo_server

__all__ = [
    "HEADER",
    "DemoInstallError",
    "Recording",
    "Use",
    "adapted",
    "demo_installed",
    "demo_server",
    "install",
    "profile",
    "read_recording",
    "replay",
]
