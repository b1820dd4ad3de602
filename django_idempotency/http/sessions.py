"""The session and the messages of a request, around its work (R51, R92)."""

from __future__ import annotations

import functools
from copy import copy, deepcopy
from typing import Any

from django.conf import settings
from django.contrib.messages.storage.base import BaseStorage
from django.contrib.sessions.backends.base import SessionBase
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.cache import patch_vary_headers

_OF_USER = ("user", "auser", "_cached_user", "_acached_user")
_OF_CSRF = ("CSRF_COOKIE", "CSRF_COOKIE_NEEDS_UPDATE")


class RequestState:
    """The session and the messages of a request, as they were before its work."""

    def __init__(self, request: HttpRequest) -> None:
        self._request: Any = request
        session: Any = getattr(request, "session", None)
        if isinstance(session, _Spent):  # by an earlier attempt of this request
            self._request.session = session = session.left
        self._session = session if isinstance(session, SessionBase) else None
        if self._session is not None:
            self._key = self._session.session_key
            self._unsaved = deepcopy(session._session) if session.modified else None
        messages = getattr(request, "_messages", None)
        self._messages = _copied(messages) if isinstance(messages, BaseStorage) else None
        #: What a login changes beside the session: the user, and the secret of CSRF tokens.
        self._user = {name: vars(request)[name] for name in _OF_USER if name in vars(request)}
        self._csrf = {name: request.META.get(name) for name in _OF_CSRF}

    def restore(self) -> None:
        """
        Give the request a fresh session of its original key, and its original messages.

        Changes that a middleware made to the session before the work, and did not save, stay.
        """
        if self._session is not None:
            session: Any = self._session.__class__(self._key)
            session.accessed = self._session.accessed
            if self._unsaved is not None:
                session._session_cache = self._unsaved
                session.modified = True
            self._request.session = session
        if self._messages is not None:
            self._request._messages = self._messages
        vars(self._request).update(self._user)
        for name, value in self._csrf.items():
            self._request.META.pop(name, None)
            if value is not None:
                self._request.META[name] = value


def _copied(messages: BaseStorage) -> BaseStorage:
    """Return a storage of the same messages, independent of later additions to the other."""
    same = copy(messages)
    for name, value in vars(messages).items():
        if isinstance(value, (list, set)):
            setattr(same, name, copy(value))
    return same


def leave_session(request: HttpRequest, response: HttpResponseBase) -> None:
    """
    Leave the session and its cookie as the work of another attempt has left them (R51).

    What this request has loaded may be older. Middleware outside may go on reading it; what
    middleware has written to it, or writes, goes with the request. A session that got another key
    before the claim is left to SessionMiddleware.
    """
    session: Any = getattr(request, "session", None)
    if not isinstance(session, SessionBase) or isinstance(session, _Spent):
        return
    if _has_new_key(request, session):
        return
    if session.accessed:
        patch_vary_headers(response, ("Cookie",))  # in the place of SessionMiddleware
    spent = _spent(session.__class__)(session.session_key)
    if hasattr(session, "_session_cache"):
        spent._session_cache = deepcopy(session._session_cache)
    spent.left = session
    request.session = spent


def _has_new_key(request: HttpRequest, session: SessionBase) -> bool:
    """
    Whether the session has another key than the request's cookie.

    Django changes it where it authenticates by a secret of SECRET_KEY_FALLBACKS, and deletes what
    the old key names: a caller who does not get the new one is logged out.
    """
    sent = request.COOKIES.get(settings.SESSION_COOKIE_NAME)
    return sent is not None and session.session_key not in (None, sent)


@functools.cache
def _spent(kind: type[SessionBase]) -> type[Any]:
    """Return a subclass whose sessions cannot be written; its name signs their data."""
    return type(kind.__name__, (_Spent, kind), {})


class _Spent:
    """A session that is read, and never saved or deleted."""

    #: The session in whose place it is.
    left: SessionBase

    def _is_not_said(self) -> bool:
        """
        Raise AttributeError.

        SessionMiddleware takes it for a request without a session, and touches no cookie. No value
        says that: one of a session that is empty is deleted, others may be set on each request.
        """
        raise AttributeError("This session is left to the work of another attempt.")

    accessed = property(_is_not_said, lambda self, value: None)

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing."""

    async def asave(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing."""

    create = delete = save
    acreate = adelete = asave
