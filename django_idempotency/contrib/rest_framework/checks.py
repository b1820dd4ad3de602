"""The system check of the actions that a ViewSet guards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.core.checks import CheckMessage, Error

from django_idempotency.http.attributes import is_property
from django_idempotency.http.inventory import routes
from django_idempotency.policy import suggestion

_USUAL_ACTIONS = ("list", "create", "retrieve", "update", "partial_update", "destroy")


def check_actions() -> list[CheckMessage]:
    """The names in ``idempotency_actions`` are actions: a typo would leave one unguarded."""
    views: dict[Any, list[Any]] = {}
    for _, _, view in routes():
        view_class = getattr(view, "cls", None)
        actions = getattr(view_class, "idempotency_actions", None)
        if actions and not is_property(actions):
            views.setdefault(_giver(view_class), []).append(view)
    return [
        Error(
            f"{giver.__module__}.{giver.__qualname__} {problem}",
            hint=hint,
            obj=giver,
            id="django_idempotency.E014",
        )
        for giver, of_giver in views.items()
        for problem, hint in _problems(giver.idempotency_actions, of_giver)
    ]


def _giver(view_class: Any) -> Any:
    """Return the class that sets ``idempotency_actions``: a view, or a base of several."""
    return next(base for base in view_class.__mro__ if "idempotency_actions" in vars(base))


def _problems(actions: Any, views: list[Any]) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with the actions of some views, and what to write."""
    if not all(hasattr(view, "actions") for view in views):
        yield (
            "has idempotency_actions and is not a ViewSet: none of it is guarded.",
            "Only a ViewSet has actions; use idempotency_methods.",
        )
    elif isinstance(actions, str):
        yield (
            f"has {actions!r}, one string, for idempotency_actions.",
            f"Write a set of names: {{{actions!r}}}.",
        )
    else:
        known = set().union(*map(_actions, views))
        for name in sorted({*actions} - known):
            yield (
                f"has no action {name!r}, which idempotency_actions names."
                f"{suggestion(name, known)}",
                "Name the methods that are actions, such as 'create': any other is not guarded.",
            )


def _actions(view: Any) -> set[str]:
    """Return the actions that a ViewSet has, whether the URLconf leads there or not."""
    extra = {name for action in view.cls.get_extra_actions() for name in action.mapping.values()}
    usual = {name for name in _USUAL_ACTIONS if hasattr(view.cls, name)}
    return extra | usual | {*view.actions.values()}
