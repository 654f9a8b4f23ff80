"""Which preferences come along, and which package declarations: a short list of both.

Everything else stays behind and is counted. Nothing is installed: packages become
``inactivePackages`` of the new settings, declarations that a person may act on.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from treering.engine.migration.prime_root import Skip

INACTIVE_PACKAGES: Final = "inactivePackages"

_NAME: Final = re.compile(r"[A-Za-z0-9_./:+-]+", re.ASCII)
_THEME: Final = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_THINKING: Final = frozenset(("off", "minimal", "low", "medium", "high", "xhigh", "max"))
_NPM: Final = re.compile(
    r"npm:(?:@[a-z0-9~-][a-z0-9._~-]*/)?[a-z0-9~-][a-z0-9._~-]*(?:@[A-Za-z0-9._+^~-]+)?", re.ASCII
)
_URL: Final = re.compile(r"(?:git\+)?https://[!-~]+", re.ASCII)
_LISTS: Final = frozenset(("extensions", "skills", "prompts", "themes"))


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def _is_theme(value: Any) -> bool:
    return isinstance(value, str) and _THEME.fullmatch(value) is not None


def _is_thinking(value: Any) -> bool:
    return isinstance(value, str) and value in _THINKING


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


_COPIED: Final[dict[str, Callable[[Any], bool]]] = {
    "defaultProvider": _is_name,
    "defaultModel": _is_name,
    "theme": _is_theme,
    "quietStartup": _is_flag,
    "defaultThinkingLevel": _is_thinking,
}
_COPIED_OF_TERMINAL: Final[dict[str, Callable[[Any], bool]]] = {
    "showImages": _is_flag,
    "showTerminalProgress": _is_flag,
}


@dataclass
class Preferences:
    """What comes along of the settings."""

    settings: dict[str, Any] = field(default_factory=dict)
    """The new settings file, without the packages."""
    names: list[str] = field(default_factory=list)
    """Which preferences these are."""
    packages: list[Any] = field(default_factory=list)
    """Declarations, as they stood there."""
    skipped: list[Skip] = field(default_factory=list)

    def written(self) -> dict[str, Any]:
        """The settings of the new root."""
        return self.settings | ({INACTIVE_PACKAGES: self.packages} if self.packages else {})

    def shown_packages(self) -> list[str]:
        """The declarations for a report: a path in an address can be a secret of its own."""
        found = []
        for package in self.packages:
            source = package if isinstance(package, str) else package["source"]
            if not source.startswith("npm:"):
                parts = urlsplit(source)
                source = f"{parts.scheme}://{parts.hostname}/[path not displayed]"
            found.append(source)
        return found


def read_preferences(settings: dict[str, Any] | None) -> Preferences:
    """Sort the settings of a root into what comes along and what does not.

    A setting that is not known is named by its number: its name may be as private as its value.
    """
    found = Preferences()
    for number, (name, value) in enumerate((settings or {}).items(), 1):
        if name == "packages":
            _take_packages(found, value)
        elif name == "terminal":
            _take_terminal(found, value)
        elif name not in _COPIED:
            found.skipped.append(Skip("setting", f"settings.json#{number}", "not-supported"))
        elif _COPIED[name](value):
            found.settings[name] = value
            found.names.append(name)
        else:
            found.skipped.append(Skip("setting", name, "invalid-value"))
    return found


def _take_terminal(found: Preferences, value: Any) -> None:
    if not isinstance(value, dict):
        found.skipped.append(Skip("setting", "terminal", "invalid-value"))
        return
    for number, (name, inner) in enumerate(value.items(), 1):
        if name not in _COPIED_OF_TERMINAL:
            found.skipped.append(Skip("setting", f"terminal#{number}", "not-supported"))
        elif _COPIED_OF_TERMINAL[name](inner):
            found.settings.setdefault("terminal", {})[name] = inner
            found.names.append(f"terminal.{name}")
        else:
            found.skipped.append(Skip("setting", f"terminal.{name}", "invalid-value"))


def _take_packages(found: Preferences, value: Any) -> None:
    if not isinstance(value, list):
        found.skipped.append(Skip("package", "packages", "not-a-list"))
        return
    for number, package in enumerate(value, 1):
        reason = _why_not(package)
        if reason is None:
            found.packages.append(package)
        else:
            found.skipped.append(Skip("package", f"packages#{number}", reason))


def _why_not(package: Any) -> str | None:
    source = package
    if isinstance(package, dict):
        source = package.get("source")
        if set(package) - _LISTS - {"source"}:
            return "members-not-supported"
        for name in _LISTS.intersection(package):
            texts = package[name]
            if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
                return "invalid-value"
    if not isinstance(source, str):
        return "invalid-value"
    if source.startswith("npm:"):
        return None if _NPM.fullmatch(source) else "source-not-supported"
    return None if _is_plain_address(source) else "source-not-supported"


def _is_plain_address(source: str) -> bool:
    """An https address with nothing in it that can carry a credential, a query or a fragment."""
    if not _URL.fullmatch(source) or any(char in source for char in "?#@\\"):
        return False
    try:
        parts = urlsplit(source)
        return bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return False
