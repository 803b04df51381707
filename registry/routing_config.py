"""Routing policies as data: how a setting, a job's option or an experiment names one, and how it is made of that.

A text is the name of a policy, `fixed:MODEL`, `learned:FILE`, or `package.module:Class` of one's own; a table has the
same under `use`, and the policy's own keys. A text that begins with `{` is such a table, as TOML or JSON.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

from .budget_route import BudgetPolicy
from .cascade import Cascade
from .errors import UsageError
from .own_code import own_object, told
from .routing import ByKind, Factory, Fixed, Hint, RoutingPolicy
from .toml_file import nearest, shown

RIGHT = (
    "the name of a policy (hint, fixed:MODEL, table, cascade, budget, learned:FILE), a table such as "
    '{use="cascade", threshold=0.5}, or package.module:Class'
)
"""What a routing policy as data must be."""
KEYS: Mapping[str, tuple[str, ...]] = {
    "hint": (),
    "fixed": ("model",),
    "table": ("models", "default"),
    "cascade": ("models", "threshold", "check"),
    "budget": ("models", "tokens"),
    "learned": ("file", "threshold"),
}
"""The keys of each built-in policy beside `use`."""
SHORT: Mapping[str, str] = {"fixed": "model", "learned": "file"}
"""The key that a text gives after the colon."""
BASE = "base"
"""The key that `anchored` writes: the folder in which a module that is not installed is looked for."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_registered: dict[str, Factory] = {}


def register_policy(name: str, factory: Factory) -> None:
    """Makes a policy available under a name of its own, in this process: `factory(**keys)` makes it of the table's
    keys, and may have a parameter `base`, the folder in which relative file names begin (None: not known). Raises
    UsageError."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UsageError(f"a routing policy's name is letters, digits, - and _, not {name!r}")
    if name in KEYS or _registered.get(name, factory) is not factory:
        raise UsageError(f"there is a routing policy {name!r} already")
    _registered[name] = factory


def policy_names() -> tuple[str, ...]:
    """The names there are: the built-in policies, and those that were registered."""
    return (*KEYS, *_registered)


def policy_of(value: Any, *, base: str | os.PathLike[str] | None = None) -> RoutingPolicy:
    """The policy of a text or a table; a policy is itself. Relative file names, and modules that are not installed,
    begin at `base`. Raises UsageError, which says what is wrong and what is right."""
    if isinstance(value, RoutingPolicy):
        return value
    table = table_of(value)
    use, keys = table["use"], {key: item for key, item in table.items() if key not in ("use", BASE)}
    folder = Path(table[BASE]) if BASE in table else None if base is None else Path(base)
    if use in KEYS:
        return _built_in(use, keys, folder)
    if use in _registered:
        return _made(use, _registered[use], keys, folder)
    return _made(use, _imported(use, folder), keys, folder)


def table_of(value: Any) -> dict[str, Any]:
    """The value as a table of plain data, its `use` and the keys of built-in policies checked; nothing is imported or
    read. Raises UsageError."""
    if isinstance(value, str):
        value = _parsed(value.strip())
    if not isinstance(value, Mapping):
        raise UsageError(f"routing = {shown(value)}: must be {RIGHT}")
    table = {str(key): _plain(item) for key, item in value.items()}
    use = table.get("use")
    if not isinstance(use, str) or not use:
        raise UsageError(f"routing: use is missing: it must be {RIGHT}")
    if use in KEYS:
        for key in table:
            if key not in ("use", *KEYS[use]):
                raise _wrong(use, f"unknown key {key!r}: {nearest(key, KEYS[use] or ('none',))}")
    elif use not in _registered and not _is_place(use):
        raise UsageError(
            f"routing: there is no policy {use!r}: {nearest(use, policy_names())}, or package.module:Class"
        )
    if not isinstance(table.get(BASE, ""), str):
        raise _wrong(use, f"{BASE} must be a folder")
    return table


def anchored(value: Any, folder: str | os.PathLike[str]) -> Any:
    """The value as plain data, its file and its module looked for in this folder, wherever it is read later."""
    table = table_of(value)
    if table["use"] == "learned" and isinstance(table.get("file"), str):
        return {**table, "file": str(Path(folder) / Path(table["file"]).expanduser())}
    own = ":" in table["use"] or (table["use"] in _registered and _takes_base(_registered[table["use"]]))
    if own and BASE not in table:
        return {**table, BASE: str(Path(folder).absolute())}
    return table if len(table) > 1 else table["use"]


def foreign(value: Any) -> str | None:
    """Why a policy may not be named by somebody who is not trusted with this machine: it reads a file or imports a
    module; None: it may. Raises UsageError where it is none at all."""
    table = table_of(value)
    use = table["use"]
    if use == "learned":
        return "the policy 'learned' reads a file"
    if use in _registered and len(table) > 1:
        return f"the policy {use!r} is registered by the operator: it takes no keys from elsewhere"
    return None if use in KEYS or use in _registered else f"{use!r} is code to be imported"


# Reading


def _parsed(text: str) -> Any:
    if text.startswith("{"):
        return _table_in(text)
    name, colon, rest = text.partition(":")
    if colon and name in SHORT:
        return {"use": name, SHORT[name]: rest.strip()}
    return {"use": text}


def _table_in(text: str) -> Any:
    """A table written in a text: JSON, or an inline table of TOML."""
    import json
    import tomllib

    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        return tomllib.loads(f"routing = {text}")["routing"]
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"routing = {shown(text)}: neither TOML nor JSON: {error}") from None


def _plain(value: Any) -> Any:
    """Data as JSON has it."""
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _is_place(use: str) -> bool:
    module, colon, name = use.partition(":")
    return bool(colon) and all(part.isidentifier() for part in [*module.split("."), *name.split(".")])


# The built-in policies


def _built_in(use: str, keys: Mapping[str, Any], base: Path | None) -> RoutingPolicy:
    makers: Mapping[str, Callable[[], RoutingPolicy]] = {
        "hint": Hint,
        "fixed": lambda: Fixed(_text(use, keys, "model")),
        "table": lambda: _by_kind(keys),
        "cascade": lambda: _cascade(keys),
        "budget": lambda: _budget(keys),
        "learned": lambda: _learned(keys, base),
    }
    return makers[use]()


def _by_kind(keys: Mapping[str, Any]) -> ByKind:
    models = keys.get("models")
    if not isinstance(models, dict) or not models or not all(isinstance(name, str) for name in models.values()):
        raise _wrong("table", 'models must be a table from kinds to models, such as {"tool:web_search"="fast"}')
    return ByKind(models, _text("table", keys, "default") if "default" in keys else None)


def _cascade(keys: Mapping[str, Any]) -> Cascade:
    given: dict[str, Any] = {}
    if "models" in keys:
        given["models"] = _names("cascade", keys, "the cheapest first", least=2)
    if "threshold" in keys:
        given["threshold"] = _share("cascade", keys["threshold"])
    if "check" in keys:
        if not isinstance(keys["check"], bool):
            raise _wrong("cascade", f"check = {shown(keys['check'])}: must be true or false, without quotes")
        given["check_results"] = keys["check"]
    return Cascade(**given)


def _budget(keys: Mapping[str, Any]) -> BudgetPolicy:
    given: dict[str, Any] = {}
    if keys.get("models", []) != []:
        given["models"] = _names("budget", keys, "the best first", least=1)
    if "tokens" in keys:
        tokens = keys["tokens"]
        whole = isinstance(tokens, list) and all(
            isinstance(count, int) and not isinstance(count, bool) for count in tokens
        )
        if not whole or len(tokens) != 2 or min(tokens) < 0:
            raise _wrong("budget", f"tokens = {shown(tokens)}: must be two counts, input and output of a step")
        given["tokens"] = tuple(tokens)
    return BudgetPolicy(**given)


def _learned(keys: Mapping[str, Any], base: Path | None) -> RoutingPolicy:
    file = Path(_text("learned", keys, "file")).expanduser()
    path = file if base is None else base / file
    if not path.is_file():
        raise _wrong("learned", f"{path}: no such file: `dagwright experiment fit` writes it")
    threshold = None if "threshold" not in keys else _number("learned", keys["threshold"])
    from .learned_route import LearnedPolicy

    policy: RoutingPolicy = LearnedPolicy.from_file(path, threshold=threshold)
    return policy


# Policies of one's own


def _imported(use: str, folder: Path | None) -> Callable[..., Any]:
    try:
        found: Any = own_object(use, folder, kind="policies", meant=_is_policy)
    except UsageError as error:
        raise UsageError(f"routing = {use!r}: {error}") from error
    if not _is_policy(found):
        raise UsageError(f"routing = {use!r}: must be a subclass of registry.routing.RoutingPolicy")
    return found  # type: ignore[no-any-return]


def _made(use: str, factory: Callable[..., Any], keys: Mapping[str, Any], folder: Path | None) -> RoutingPolicy:
    make = partial(factory, base=folder) if _takes_base(factory) else factory
    try:
        policy = make(**keys)
    except Exception as error:
        raise _wrong(use, f"can't be made: {told(error)}") from error
    if not isinstance(policy, RoutingPolicy):
        raise _wrong(use, f"gave a {type(policy).__name__}, not a RoutingPolicy")
    return policy


def _takes_base(factory: Callable[..., Any]) -> bool:
    try:
        return "base" in inspect.signature(factory).parameters
    except (TypeError, ValueError):
        return False


def _is_policy(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, RoutingPolicy) and not inspect.isabstract(value)


# Values


def _wrong(use: str, what: str) -> UsageError:
    return UsageError(f"routing, policy {use!r}: {what}")


def _text(use: str, keys: Mapping[str, Any], key: str) -> str:
    value = keys.get(key)
    if not isinstance(value, str) or not value.strip():
        raise _wrong(use, f"{key} is missing" if value is None else f"{key} = {shown(value)}: must be a text in quotes")
    return value


def _names(use: str, keys: Mapping[str, Any], order: str, *, least: int) -> tuple[str, ...]:
    value = keys["models"]
    if not isinstance(value, list) or not all(isinstance(name, str) and name for name in value) or len(value) < least:
        raise _wrong(use, f"models = {shown(value)}: must be a list of {least} or more models or roles, {order}")
    return tuple(value)


def _number(use: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong(use, f"threshold = {shown(value)}: must be a number, without quotes")
    return float(value)


def _share(use: str, value: Any) -> float:
    number = _number(use, value)
    if not 0 <= number <= 1:
        raise _wrong(use, f"threshold = {shown(value)}: must be from 0 to 1")
    return number
