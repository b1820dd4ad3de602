"""The admin: records of every store, what they mean, and an operator's decisions about them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode
from uuid import UUID

from django.contrib import admin, messages
from django.contrib.admin.models import LogEntry
from django.contrib.admin.utils import unquote
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import PermissionDenied
from django.db import router, transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils import timezone
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import ngettext, pgettext

from django_idempotency.admin import decisions, lists, overviews, records
from django_idempotency.admin.shown import May, Row, moments
from django_idempotency.conf import DEFAULT_ALIAS, InvalidStore, stores
from django_idempotency.exceptions import IdempotencyError, StoreError
from django_idempotency.keys import short
from django_idempotency.models import IdempotencyRecord
from django_idempotency.operators import search
from django_idempotency.operators.decisions import Decision, NotResolved, Seen
from django_idempotency.operators.facts import Reading
from django_idempotency.operators.guarded import guard_of
from django_idempotency.records import Record
from django_idempotency.stores.base import BaseStore
from django_idempotency.stores.database import DatabaseStore

__all__ = ["IdempotencyRecordAdmin"]

if TYPE_CHECKING:
    _ModelAdmin = admin.ModelAdmin[IdempotencyRecord]
else:
    _ModelAdmin = admin.ModelAdmin

_TEMPLATES = "django_idempotency/admin"
#: What the names of Django's views end with that the admin keeps.
_KEPT = ("_changelist", "_change")
_NAME = "admin:django_idempotency_idempotencyrecord"


@admin.register(IdempotencyRecord)
class IdempotencyRecordAdmin(_ModelAdmin):
    """
    The records of every store: a list, an overview, a page per record, and decisions.

    Nothing can be added, changed or deleted but by `release`, `complete`, `expire` and `resume`,
    which are the store's own `resolve`. The store ``default`` has the usual URLs of a ModelAdmin,
    each other one its own below ``store/ALIAS/``.
    """

    #: The address of a dashboard, which has the rates: the overview links to it.
    dashboard_url: str | None = None

    def get_urls(self) -> list[Any]:
        """
        Return the URLs of the pages; those of the store ``default`` are the usual ones.

        The other views of Django read the model, by the routers: many a record is in another store.
        """
        wrap, name = self.admin_site.admin_view, _NAME.removeprefix("admin:")
        store = "store/<path:alias>/"
        # With ATOMIC_REQUESTS, an error would roll the entries of earlier decisions back.
        decide = transaction.non_atomic_requests(wrap(self.decide_view))
        return [
            path(f"{store}overview/", wrap(self.overview_view), name=f"{name}_overview"),
            path(f"{store}decide/", decide, name=f"{name}_decide"),
            path(f"{store}<uuid:record_id>/", wrap(self.record_view), name=f"{name}_record"),
            path(store, wrap(self.list_view), name=f"{name}_store"),
            *(it for it in super().get_urls() if (it.name or "").endswith(_KEPT)),
        ]

    # The pages.

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Return the list of the store ``default``."""
        return self.list_view(request, DEFAULT_ALIAS)

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        """Return the page of a record of the store ``default``."""
        self._may(request)
        if request.method == "POST":
            raise PermissionDenied
        try:
            record_id = UUID(unquote(object_id))
        except ValueError:
            return self._back(request, DEFAULT_ALIAS, _("This is no record id."))
        return self.record_view(request, DEFAULT_ALIAS, record_id)

    def list_view(self, request: HttpRequest, alias: str) -> HttpResponse:
        """Return a page of the list of a store."""
        may = self._may(request)
        form = lists.ListForm(request.GET, view_key=may.view_key)
        found, store, error = search.Found(), None, ""
        try:
            store = _store(alias)
            if form.is_valid():
                found = lists.find(store, form, request.GET.get("cursor"))
        except (InvalidStore, StoreError) as failure:
            error = str(failure)
        except ValueError:
            error = _("This page cannot be continued from there. Begin anew.")
        query = {**request.GET.dict(), "cursor": found.cursor}
        rows = [self._row(alias, record, may) for record in found.records]
        return self._page(
            request,
            alias,
            "list",
            error=error,
            form=form,
            may=may,
            rows=rows,
            found=found,
            most=search.NEWEST,
            seconds=lists.SECONDS,
            zone=timezone.get_current_timezone_name(),
            next=f"?{urlencode(query)}" if found.cursor else None,
            is_continued="cursor" in request.GET,
            is_filtered=form.is_filtered,
            is_table=isinstance(store, DatabaseStore),
            operations=sorted({row.record.operation for row in rows} - {""}),
            actions={name: decisions.ACTIONS[name][0] for name in ("release", "expire")},
        )

    def record_view(self, request: HttpRequest, alias: str, record_id: UUID) -> HttpResponse:
        """Return the page of a record."""
        may = self._may(request)
        try:
            store = _store(alias)
            record = store.get(record_id)
        except (InvalidStore, StoreError) as failure:
            return self._page(request, alias, "record", error=failure, title=short(record_id))
        if record is None:
            return self._elsewhere(request, alias, record_id)
        return self._page(
            request,
            alias,
            "record",
            title=pgettext("idempotency", "Record %s") % short(record_id),
            row=self._row(alias, record, may),
            log=self._log_of(record_id),
            **records.context_of(Reading(store, record), may, self.admin_site, request),
        )

    def overview_view(self, request: HttpRequest, alias: str) -> HttpResponse:
        """Return the overview of a store."""
        may = self._may(request)
        context: dict[str, Any] = {"dashboard_url": self.dashboard_url}
        try:
            count = request.GET.get("count") == "waiting"
            context["overview"] = overview = overviews.overview_of(_store(alias), count=count)
            for name in ("oldest", "oldest_stale", "oldest_held"):
                if (record := overview[name]) is not None:
                    context[name] = self._row(alias, record, may)
        except (InvalidStore, StoreError) as failure:
            context["error"] = failure
        return self._page(request, alias, "overview", **context)

    def decide_view(self, request: HttpRequest, alias: str) -> HttpResponse:
        """Ask for a reason and confirmation of a decision, or carry it out."""
        may = self._may(request)
        if not may.resolve:
            raise PermissionDenied
        if request.method != "POST":  # a login has come between the list and this page
            return HttpResponseRedirect(self._list_url(alias))
        try:
            about = decisions.asked_for(_store(alias), request.POST)
        except (InvalidStore, NotResolved, StoreError) as error:
            return self._back(request, alias, str(error))
        confirmed = "confirm" in request.POST
        form = decisions.DecisionForm(about, request.POST if confirmed else None)
        if confirmed and form.is_valid():
            return self._carry_out(request, about, form)
        action, rows, alone = request.POST["action"], [], about[0].found
        for it in about:
            row = None if it.record is None else self._row(alias, it.record, may)
            rows.append((short(it.seen.record_id), row, it, decisions.signed(it.seen, alias)))
        return self._page(
            request,
            alias,
            "decide",
            title=decisions.ACTIONS[action][0],
            action=action,
            may=may,
            form=form,
            step=about[0].step,
            decisions=rows,
            question=None
            if len(about) > 1 or alone is None or about[0].step is not None
            else decisions.question_of(alone, guard_of(alone)),
            possible=any(it.obstacle is None for it in about),
        )

    def _carry_out(
        self, request: HttpRequest, about: list[Decision], form: decisions.DecisionForm
    ) -> HttpResponse:
        """Carry out a decision about each record, and say what became of it."""
        alias, action, done = about[0].store.alias, about[0].action, 0
        for decision in about:
            force = form.cleaned_data.get("force", False)
            why = self._decide(request, replace(decision, force=force, result=form.result), form)
            if why is None:
                done += 1
                continue
            # Django writes the first letter of a message as a capital.
            said = f"{pgettext('idempotency', 'Record %s') % short(decision.seen.record_id)}: {why}"
            self.message_user(request, said, messages.ERROR)
        if done:
            said = ngettext("%(done)s: %(n)d record.", "%(done)s: %(n)d records.", done)
            words = {"done": decisions.past_of(about[0]), "n": done}
            self.message_user(request, said % words, messages.SUCCESS)
        # Some stores delete what has expired: its page would be gone.
        if len(about) == 1 and about[0].record is not None and not (done and action == "expire"):
            return HttpResponseRedirect(self._record_url(alias, about[0].seen.record_id))
        return HttpResponseRedirect(self._list_url(alias))

    def _decide(
        self, request: HttpRequest, decision: Decision, form: decisions.DecisionForm
    ) -> str | None:
        """
        Carry out a decision, and write its entry into the admin log; return why it was not done.

        The entry commits after the decision, and both do where they share a database: without the
        entry nothing is decided, and an entry of what was not done is rolled back. If it is not
        known whether the store has done it, an entry says so.
        """
        if why := decision.obstacle:
            return why
        store, record = decision.store, IdempotencyRecord(pk=decision.seen.record_id)
        who, reason = request.user.get_username(), form.cleaned_data["reason"]
        entry = _("%(done)s in the store %(alias)s: %(reason)s")
        if decision.ends_attempt:  # of several, one may run
            entry = _("%(done)s in the store %(alias)s, with a running attempt: %(reason)s")
        entry %= {"done": decisions.past_of(decision), "alias": store.alias, "reason": reason}
        using = router.db_for_write(LogEntry)
        try:
            with transaction.atomic(using=using):
                self.log_change(request, record, entry)
                decision.carry_out(who=who, reason=reason)
        except StoreError as error:
            if isinstance(store, DatabaseStore) and store.using == using:
                return str(error)  # rolled back with the entry
            unknown = _("It may have been done: look at it again.")
            self.log_change(request, record, f"{entry} ({unknown})")
            return f"{error} {unknown}"
        except IdempotencyError as error:
            return str(error)
        return None

    # What the pages share.

    def _may(self, request: HttpRequest) -> May:
        """Return what the user may see and do; raise PermissionDenied for who may see nothing."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        names = ("view_key", "view_result", "resolve_record")
        label = self.opts.app_label
        return May(*(request.user.has_perm(f"{label}.{name}") for name in names))

    def _page(
        self, request: HttpRequest, alias: str, page: str, **context: Any
    ) -> TemplateResponse:
        """Return a page with what each shows: the picker of stores, and where it leads."""
        overview_urls = {name: self._url("overview", name) for name in stores}
        list_urls = {name: self._list_url(name) for name in stores}
        leads_to = overview_urls if page == "overview" else list_urls
        shared = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": capfirst(self.opts.verbose_name_plural),
            "alias": alias,
            "page": page,
            "picker": [(name, _kind(name), url) for name, url in leads_to.items()],
            "list_url": list_urls[alias],
            "overview_url": overview_urls[alias],
            "decide_url": self._url("decide", alias),
        }
        return TemplateResponse(request, f"{_TEMPLATES}/{page}.html", {**shared, **context})

    def _row(self, alias: str, record: Record, may: May) -> Row:
        seen = decisions.signed(Seen.of(record), alias) if may.resolve else ""
        return Row(record, may, self._record_url(alias, record.record_id), seen)

    def _log_of(self, record_id: UUID) -> list[tuple[list[str], LogEntry]]:
        """Return the decisions about this record and their times, newest first."""
        kind = ContentType.objects.get_for_model(IdempotencyRecord)
        entries = LogEntry.objects.filter(content_type=kind, object_id=str(record_id))
        newest = entries.select_related("user").order_by("-action_time")[:20]
        return [(moments(entry.action_time), entry) for entry in newest]

    def _elsewhere(self, request: HttpRequest, alias: str, record_id: UUID) -> HttpResponse:
        """
        Lead to another store's record: the admin log links all of them to ``default``.

        Two stores may have records of one id, so the page of another store leads nowhere else.
        """
        words = {"alias": alias, "record": short(record_id)}
        for other in stores if alias == DEFAULT_ALIAS else ():
            try:
                if other == alias or stores[other].get(record_id) is None:
                    continue
            except (InvalidStore, StoreError):
                continue
            said = _("The store %(alias)s has no record %(record)s: this is the one of %(other)s.")
            self.message_user(request, said % {**words, "other": other}, messages.WARNING)
            return HttpResponseRedirect(self._record_url(other, record_id))
        why = _("The store %(alias)s has no record %(record)s.")
        return self._back(request, alias, why % words)

    def _back(self, request: HttpRequest, alias: str, why: str) -> HttpResponse:
        self.message_user(request, why, messages.ERROR)
        return HttpResponseRedirect(self._list_url(alias))

    def _url(self, page: str, *args: Any) -> str:
        return reverse(f"{_NAME}_{page}", args=args, current_app=self.admin_site.name)

    def _list_url(self, alias: str) -> str:
        if alias == DEFAULT_ALIAS:
            return self._url("changelist")
        return self._url("store", alias)

    def _record_url(self, alias: str, record_id: UUID) -> str:
        if alias == DEFAULT_ALIAS:
            return self._url("change", record_id)
        return self._url("record", alias, record_id)

    # Nothing else is possible.

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Claims make records, and owners change them; one that is gone lets its work run again."""
        return False

    has_change_permission = has_delete_permission = has_add_permission


def _store(alias: str) -> BaseStore:
    """Return the store of an alias of the setting; raise Http404 for another, and InvalidStore."""
    if alias not in list(stores):  # by name alone: a store that cannot be made has a page
        raise Http404(f"IDEMPOTENCY has no alias {alias!r}.")
    return stores[alias]


def _kind(alias: str) -> str:
    """Return what kind of store an alias has; "" if it cannot be made."""
    try:
        return type(stores[alias]).__name__.removesuffix("Store")
    except InvalidStore:
        return ""
