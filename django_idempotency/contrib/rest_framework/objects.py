"""A `replay_check` by the object permissions of a view of Django REST framework (R34)."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ImproperlyConfigured, PermissionDenied
from django.http import Http404
from rest_framework import exceptions
from rest_framework.generics import GenericAPIView

from django_idempotency.codecs import unpack
from django_idempotency.http.snapshot import Snapshot, SnapshotCodec
from django_idempotency.records import Record


def object_permissions(request: Any, record: Record) -> bool:
    """
    Return whether ``get_object()`` of the view still returns the URL's object to this caller.

    True if the URL names no object. A missing object refuses the replay, unless the request is the
    DELETE that was to remove it. Raises ImproperlyConfigured for a view that is not generic and has
    arguments in its URL.
    """
    view = (getattr(request, "parser_context", None) or {}).get("view")
    if not isinstance(view, GenericAPIView):
        if view.kwargs if view is not None else request.resolver_match.kwargs:
            raise ImproperlyConfigured(
                "object_permissions calls get_object() of a GenericAPIView, but this view is "
                "another. Give it a replay_check of its own."
            )
        return True
    if (view.lookup_url_kwarg or view.lookup_field) not in view.kwargs:
        return True
    try:
        view.get_object()
    except (Http404, exceptions.NotFound):
        return request.method == "DELETE" and _has_succeeded(record)
    except (PermissionDenied, exceptions.PermissionDenied, exceptions.NotAuthenticated):
        return False
    return True


def _has_succeeded(record: Record) -> bool:
    # Its size was checked when the replay was made of it.
    snapshot = unpack(SnapshotCodec(), record.result, max_bytes=2**31)
    return isinstance(snapshot, Snapshot) and 200 <= snapshot.status < 300
