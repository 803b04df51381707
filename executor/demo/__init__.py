"""The demonstration: a small model for this machine's CPU, on the user's word, and the replay of a recorded run."""

from .install import DemoInstallError, default_data_dir, demo_installed, install
from .replay import Recording, read_recording, replay
from .serve import HEADER, demo_server, profile

__all__ = [
    "HEADER",
    "DemoInstallError",
    "Recording",
    "default_data_dir",
    "demo_installed",
    "demo_server",
    "install",
    "profile",
    "read_recording",
    "replay",
]
