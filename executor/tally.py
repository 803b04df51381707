"""What calls of models cost, in all and in parts."""

from __future__ import annotations

from dataclasses import dataclass, field

from registry.messages import Usage


@dataclass(slots=True)
class Tally:
    """Usage in all, by the caller's role, and by the model's registered name."""

    usage: Usage = field(default_factory=Usage.zero)
    by_role: dict[str, Usage] = field(default_factory=dict)
    by_model: dict[str, Usage] = field(default_factory=dict)

    def add(self, role: str, model: str, usage: Usage) -> None:
        """One call."""
        self.usage += usage
        add_to(self.by_role, role, usage)
        add_to(self.by_model, model, usage)


def add_to(parts: dict[str, Usage], name: str, usage: Usage) -> None:
    """Adds a call to the part of this name."""
    parts[name] = parts.get(name, Usage.zero()) + usage
