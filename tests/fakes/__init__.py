"""Stand-ins for what is outside: a provider that keeps the providers' rules over real HTTP."""

from .brain import brain
from .rules import RULES, Rule
from .server import BAD_KEY, ProviderFake
from .view import Reply, View

__all__ = ["BAD_KEY", "RULES", "ProviderFake", "Reply", "Rule", "View", "brain"]
