"""The session and the messages of a request, around its work (R92)."""

from __future__ import annotations

from copy import copy, deepcopy
from typing import Any

from django.contrib.messages.storage.base import BaseStorage
from django.contrib.sessions.backends.base import SessionBase
from django.http import HttpRequest

__all__ = ["RequestState"]


class RequestState:
    """The session and the messages of a request, as they were before its work."""

    def __init__(self, request: HttpRequest) -> None:
        self._request: Any = request
        session: Any = getattr(request, "session", None)
        self._session = session if isinstance(session, SessionBase) else None
        if self._session is not None:
            self._key = self._session.session_key
            self._unsaved = deepcopy(session._session) if session.modified else None
        messages = getattr(request, "_messages", None)
        self._messages = _copied(messages) if isinstance(messages, BaseStorage) else None

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


def _copied(messages: BaseStorage) -> BaseStorage:
    """Return a storage of the same messages, independent of later additions to the other."""
    same = copy(messages)
    for name, value in vars(messages).items():
        if isinstance(value, (list, set)):
            setattr(same, name, copy(value))
    return same
