"""`session context` and `session usage`: what a model is given, and what it has cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from treering.tools.options import home_option, json_option, store_at

if TYPE_CHECKING:
    from treering.engine.session.context_rules import ContextMessage, SessionContext
    from treering.engine.session.view import SessionView

_ROOT = "root"
"""Names the position before any entry, as in `session branch`."""


@click.command()
@click.argument("sel")
@click.option("--leaf", metavar="ID", help="Another entry than the current position, or 'root'.")
@home_option
@json_option
def context(sel: str, leaf: str | None, home: str | None, as_json: bool) -> None:
    """Show what a model is given at the current position: settings and messages in order."""
    from treering.tools.output import one_line, pad, say_clipped
    from treering.tools.resolving import resolve, resolve_entry
    from treering.tools.viewing import looking_at

    with looking_at(resolve(store_at(home), sel)) as view:
        leaf_id = view.leaf_id
        if leaf is not None:
            leaf_id = None if leaf == _ROOT else resolve_entry(view, leaf)
        found = view.read_session_context(leaf_id)
        if as_json:
            _say_context(found, leaf_id)
            return
        model = found.model
        named = "none" if model is None else f"{model.provider or '?'}/{model.model_id or '?'}"
        say_clipped(f"model {one_line(named)}, thinking {one_line(found.thinking_level)},")
        say_clipped(f"tier {one_line(found.service_tier)}; {len(found.messages)} messages")
        say_clipped("")
        for message in found.messages:
            role, text = _line_of(message)
            head = f"{pad(one_line(message.entry_id), 8)}  {pad(one_line(role), 17)}"
            say_clipped(f"{head}  {one_line(text)}")


def _line_of(message: ContextMessage) -> tuple[str, str]:
    """Role and text of a message, on one line."""
    from treering.engine.session.texts import whole_text

    found = message.decode()
    members = found if isinstance(found, dict) else {}
    for name in ("summary", "command"):
        if isinstance(members.get(name), str):
            return message.role or "?", members[name]
    calls = [
        str(block.get("name"))
        for block in members.get("content") or ()
        if isinstance(block, dict) and block.get("type") == "toolCall"
    ]
    text = whole_text(members.get("content"))
    return message.role or "?", text or (f"calls {', '.join(calls)}" if calls else "")


def _say_context(found: SessionContext, leaf_id: str | None) -> None:
    from treering.tools.output import say_json

    model = found.model
    named = None if model is None else {"provider": model.provider, "modelId": model.model_id}
    say_json(
        {
            "leafId": leaf_id,
            "model": named,
            "thinkingLevel": found.thinking_level,
            "serviceTier": found.service_tier,
            "messages": [
                {"entryId": message.entry_id, "message": message.decode()}
                for message in found.messages
            ],
        }
    )


@click.command()
@click.argument("sel")
@home_option
@json_option
def usage(sel: str, home: str | None, as_json: bool) -> None:
    """Show tokens and cost of a session over all branches, and the size of its context."""
    from treering.tools.output import say, say_json, table
    from treering.tools.resolving import resolve
    from treering.tools.viewing import looking_at

    with looking_at(resolve(store_at(home), sel)) as view:
        figures = _figures(view)
        if as_json:
            say_json(figures)
            return
        head = ("", "input", "output", "cache read", "cache write", "total", "cost")
        rows = [
            (name, *(_cell(value) for value in figures[name].values()))
            for name in ("assistant", "summary", "child")
            if figures[name] is not None
        ]
        table(head, rows, (9, 10, 10, 10, 11, 10, 10))
        tokens = figures["contextTokens"]
        say(f"context: {'unknown' if tokens is None else f'{tokens} tokens'}")


def _figures(view: SessionView) -> dict[str, Any]:
    from treering.engine.session.context_usage import read_context_usage
    from treering.tools.listing import usage_as_json

    totals = view.usage()
    context_usage = read_context_usage(view)
    figures: dict[str, Any] = {
        name: usage_as_json(totals[name]) if name in totals else None
        for name in ("assistant", "summary", "child")
    }
    figures["contextTokens"] = None if context_usage is None else context_usage.tokens
    return figures


def _cell(value: float) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)
