"""The aliases of the IDEMPOTENCY setting, and the plans that declarations make of them."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from difflib import get_close_matches
from inspect import Parameter
from typing import Any, Generic, TypeVar

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from django_idempotency import keys
from django_idempotency.codecs import Codec
from django_idempotency.engine import Engine
from django_idempotency.engine.operation import OpenTransactions, Operation, check_mode
from django_idempotency.engine.waiting import Waiter
from django_idempotency.fingerprint import Fingerprint
from django_idempotency.observers import observe
from django_idempotency.options import Secret, conceal, concealed
from django_idempotency.policy import (
    HTTPPolicy,
    Policy,
    UnknownField,
    check_signatures,
    merge,
    suggestion,
)
from django_idempotency.stores.base import BaseStore
from django_idempotency.stores.forks import in_each_child

__all__ = [
    "DEFAULT_ALIAS",
    "HTTP_FIELDS",
    "POLICY_FIELDS",
    "Declaration",
    "InvalidStore",
    "Plan",
    "UnknownAlias",
    "engine_for",
    "http_policy_for",
    "policy_for",
    "store_for",
    "stores",
    "written_as",
]

DEFAULT_ALIAS = "default"
DEFAULT_BACKEND = "django_idempotency.stores.database.DatabaseStore"
_BACKENDS = (
    DEFAULT_BACKEND,
    "django_idempotency.stores.redis.RedisStore",
    "django_idempotency.stores.dynamodb.DynamoDBStore",
    "django_idempotency.stores.memory.MemoryStore",
)

POLICY_FIELDS = frozenset(item.name for item in fields(Policy))
HTTP_FIELDS = frozenset(item.name for item in fields(HTTPPolicy))
_POLICY_NAMES = [item.name.upper() for item in fields(Policy)]
_HTTP_NAMES = [item.name.upper() for item in fields(HTTPPolicy)]
#: Other words for the alias of a database, which Django calls ``using``.
_DATABASE_NAMES = ("alias", "database", "db")


class InvalidStore(ImproperlyConfigured):
    """The IDEMPOTENCY setting does not describe a store."""


class UnknownAlias(InvalidStore):
    """The IDEMPOTENCY setting lacks an alias that the code names."""


@dataclass(frozen=True)
class Plan:
    """The parts that are fixed before a call: an alias's store, its engine, and the policies."""

    alias: str
    store: BaseStore
    engine: Engine
    policy: Policy
    http_policy: HTTPPolicy

    def with_fields(self, given: Mapping[str, Any]) -> Plan:
        """Return this plan with the fields `given` of both policies; raise ValueError."""
        conceal(given)
        policy = {name: given[name] for name in given if name in POLICY_FIELDS}
        http = {name: given[name] for name in given if name in HTTP_FIELDS}
        return replace(
            self, policy=merge(self.policy, policy), http_policy=merge(self.http_policy, http)
        )

    def operation(
        self,
        *,
        kind: str,
        scope: str,
        key: str,
        name: str,
        fingerprint: Fingerprint,
        codec: Codec,
        mode: str,
        open_transactions: OpenTransactions,
        wait: timedelta,
        aliases: Sequence[str] = (),
        closes_connections: bool = False,
        unstorable_ok: bool | None = None,
        checks_replay: bool = False,
        make_waiter: Callable[[Operation], Waiter] | None = None,
        label: str = "",
    ) -> Operation:
        """
        Return the operation of one request, delivery or call.

        `unstorable_ok` is so by default where the work commits without its record.
        """
        is_within = not open_transactions.may_wait  # the caller's transaction
        return Operation(
            record_id=keys.record_id(kind, scope, key),
            scope=scope,
            key=key,
            name=name,
            fingerprint=fingerprint,
            policy=self.policy,
            codec=codec,
            transaction=mode,
            aliases=aliases,
            unstorable_ok=mode == "separate" if unstorable_ok is None else unstorable_ok,
            wait=timedelta(0) if is_within else wait,
            closes_connections=closes_connections,
            outer=open_transactions.outer() if is_within else None,
            commit_hooks=open_transactions.commit_hooks() if is_within else None,
            checks_replay=checks_replay,
            make_waiter=make_waiter,
            label=label,
        )


class Stores(Mapping[str, BaseStore]):
    """
    The stores by alias: one object per process, for all of its threads and tasks.

    Built when first asked for, and again after the setting has changed.
    """

    def __init__(self) -> None:
        self._mutex = threading.RLock()
        #: The plan of each alias that was asked for, since the setting has changed.
        self.plans: dict[str, Plan] = {}

    def __getitem__(self, alias: str) -> BaseStore:
        """Return the store; raise InvalidStore for an alias that is missing or not valid."""
        return self.configured(alias).store

    def __iter__(self) -> Any:
        return iter(_setting())

    def __len__(self) -> int:
        return len(_setting())

    def configured(self, alias: str) -> Plan:
        """Return the plan that the setting describes for `alias`."""
        configured = self.plans.get(alias)
        if configured is None:
            with self._mutex:
                configured = self.plans.get(alias)
                if configured is None:
                    configured = self.plans[alias] = _configure(alias)
        return configured

    def reset(self) -> None:
        """Forget the stores, and so every plan: the settings have changed."""
        with self._mutex:
            self.plans = {}

    def forked(self) -> None:
        """Take a mutex of this child's own: a thread of the parent may have held the other."""
        self._mutex = threading.RLock()


#: What is done to each store when it is made: `contrib.metrics` times its calls.
instruments: list[Callable[[BaseStore], None]] = []
#: The stores of this process.
stores = Stores()
in_each_child(stores.forked)


AnyPlan = TypeVar("AnyPlan", bound=Plan)


@dataclass
class Declaration(Generic[AnyPlan]):
    """
    What a view or a task declares of its guard: the alias, and fields of the alias's policies.

    Its plan is made when it is first needed, and again once the setting has changed: the alias has
    another plan then.
    """

    store: str = DEFAULT_ALIAS
    overrides: Mapping[str, Any] = field(default_factory=dict)
    _made: tuple[Plan, AnyPlan] | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        conceal(self.overrides)

    def plan(self) -> AnyPlan:
        """Return the alias's plan with the fields given here; raise InvalidStore, ValueError."""
        made = self._made
        if made is None or made[0] is not stores.plans.get(self.store):
            alias = stores.configured(self.store)
            self._made = made = (alias, self._plan(alias))
        return made[1]

    def _plan(self, alias: Plan) -> AnyPlan:
        """Return what this kind of declaration makes of the alias's plan."""
        raise NotImplementedError


def store_for(alias: str = DEFAULT_ALIAS) -> BaseStore:
    """Return the store of `alias`; raise InvalidStore."""
    return stores.configured(alias).store


def engine_for(alias: str = DEFAULT_ALIAS) -> Engine:
    """Return the engine on the store of `alias`; raise InvalidStore."""
    return stores.configured(alias).engine


def policy_for(alias: str = DEFAULT_ALIAS) -> Policy:
    """Return the policy that the setting gives `alias`; raise InvalidStore."""
    return stores.configured(alias).policy


def http_policy_for(alias: str = DEFAULT_ALIAS) -> HTTPPolicy:
    """Return the HTTP policy that the setting gives `alias`; raise InvalidStore."""
    return stores.configured(alias).http_policy


def fingerprint_secrets(policy: Policy) -> tuple[Secret, ...]:
    """Return the secrets of fingerprints, newest first: the policy's, or else the project's."""
    own = policy.fingerprint_secrets
    return own or _hidden(settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)


@functools.lru_cache(maxsize=8)
def _hidden(*secrets: str | bytes) -> tuple[Secret, ...]:
    return tuple(map(Secret, secrets))


def _setting() -> Mapping[str, Mapping[str, Any]]:
    configured = concealed(getattr(settings, "IDEMPOTENCY", None))
    if configured is None or configured == {}:
        return {DEFAULT_ALIAS: {}}
    if not isinstance(configured, Mapping):
        raise InvalidStore("IDEMPOTENCY must be a dict of aliases, as CACHES and STORAGES are.")
    if DEFAULT_ALIAS not in configured:
        raise InvalidStore(
            f"IDEMPOTENCY must define the alias {DEFAULT_ALIAS!r}.{_belongs(configured)}"
        )
    return configured


def written_as(name: str) -> str | None:
    """Return the right spelling of a name of an alias, such as LEASE; None for an unknown one."""
    if name in _HTTP_NAMES:
        return f'IDEMPOTENCY = {{"default": {{"HTTP": {{"{name}": ...}}}}}}'
    if name in ("BACKEND", "HTTP", "OPTIONS", *_POLICY_NAMES):
        return f'IDEMPOTENCY = {{"default": {{"{name}": ...}}}}'
    return None


def _belongs(names: Iterable[str]) -> str:
    """Return how the first of `names` that belongs into an alias is written, as a sentence."""
    known = [name for name in names if written_as(name)]
    return f" {known[0]} belongs into an alias: {written_as(known[0])}." if known else ""


def _configure(alias: str) -> Plan:
    configured = _setting()
    if alias not in configured:
        hint = suggestion(str(alias), map(str, configured))
        hint = hint or f" It has {', '.join(map(repr, configured))}."
        raise UnknownAlias(f"IDEMPOTENCY has no alias {alias!r}.{hint}")
    description = configured[alias]
    if not isinstance(description, Mapping):
        raise InvalidStore(f"IDEMPOTENCY[{alias!r}] must be a dict.{_belongs([alias])}")
    given = dict(description)
    backend = given.pop("BACKEND", DEFAULT_BACKEND)
    options = given.pop("OPTIONS", {})
    http = given.pop("HTTP", {})
    where = f"IDEMPOTENCY[{alias!r}]"
    for name, value in {"OPTIONS": options, "HTTP": http}.items():
        if not isinstance(value, Mapping):
            raise InvalidStore(f"{where}[{name!r}] must be a dict.")
    if not isinstance(backend, str):
        raise InvalidStore(f"{where}['BACKEND'] must be the dotted path of a store.")
    known = ["BACKEND", "OPTIONS", "HTTP", *_POLICY_NAMES]
    for name in given:
        option = str(name).lower()
        if name not in known and option in _options_of(backend):
            raise InvalidStore(f"{where} has no {name!r}. Write 'OPTIONS': {{{option!r}: ...}}.")
    policy = _policy(Policy(), given, known, where)
    http_policy = _policy(HTTPPolicy(), http, _HTTP_NAMES, f"{where}['HTTP']")
    store = _build(backend, options, where)
    store.alias = alias
    for instrument in instruments:
        observe(instrument, store)
    if policy.transaction == "steps":
        raise InvalidStore(
            f"{where}['TRANSACTION'] cannot be 'steps', which takes the transaction from each view "
            f'of the alias: write transaction="steps" on the view, the task or the call.'
        )
    try:
        check_mode(policy, store)
    except ValueError as error:
        raise InvalidStore(f"{where}['TRANSACTION']: {error}") from error
    return Plan(alias, store, Engine(store), policy, http_policy)


def _policy(default: Any, given: Mapping[str, Any], known: list[str], where: str) -> Any:
    for name in given:
        if name not in known:
            raise InvalidStore(f"{where} has no {name!r}.{_meant(name, known)}")
    fields_given = {name.lower(): value for name, value in given.items()}
    try:
        merged = merge(default, fields_given)
        check_signatures(fields_given)
    except (TypeError, ValueError, UnknownField) as error:
        raise InvalidStore(f"{where}: {error}") from error
    return merged


def _meant(name: Any, known: list[str]) -> str:
    """Return the right place of a misplaced name, or else the nearest of the names `known`."""
    if name in _HTTP_NAMES:
        return " It belongs into 'HTTP'."
    if name in ("BACKEND", "OPTIONS", *_POLICY_NAMES):
        return " It belongs beside 'HTTP'."
    if name in ("SCOPE_QUOTA", "SCOPE_QUOTA_CACHE"):
        return (
            " Use a throttle in its place: see 'Limit the keys of a scope', "
            "https://django-idempotency.readthedocs.io/en/latest/howto/scope.html."
        )
    if name == "OPERATION":
        return (
            " It belongs on a view, a task or a call: @idempotent(operation=...), or "
            "idempotency_operation with the mixin of REST framework."
        )
    return suggestion(str(name), known)


def _build(backend: str, options: Mapping[str, Any], where: str) -> BaseStore:
    try:
        store_class = import_string(backend)
    except ImportError as error:
        raise InvalidStore(
            f"{where}['BACKEND'] cannot be imported: {error}. The stores of this package are "
            f"{', '.join(_BACKENDS)}."
        ) from error
    is_store = isinstance(store_class, type) and issubclass(store_class, BaseStore)
    if is_store:
        _known_options(store_class, options, where)
    try:
        store = store_class(**options)
    except (TypeError, ValueError) as error:
        hint = "".join(_misspelt(store_class, options)) if is_store else ""
        raise InvalidStore(f"{where}['OPTIONS'] do not fit {backend}: {error}{hint}") from error
    except ImportError as error:  # the store's client is missing: an extra installs it
        raise InvalidStore(f"{where}['BACKEND']: {error}") from error
    if not isinstance(store, BaseStore):
        raise InvalidStore(f"{where}['BACKEND'] is no store: {backend}.")
    return store


def _options_of(backend: str) -> list[str]:
    """Return the names of a store's own OPTIONS; none where it cannot be imported."""
    try:
        parameters = inspect.signature(import_string(backend)).parameters.values()
    except (ImportError, TypeError, ValueError):
        return []
    open_ended = (Parameter.VAR_KEYWORD, Parameter.VAR_POSITIONAL)
    return [parameter.name for parameter in parameters if parameter.kind not in open_ended]


def _known_options(store_class: type[BaseStore], options: Mapping[str, Any], where: str) -> None:
    parameters = inspect.signature(store_class).parameters
    if any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    for name in options:
        if name not in parameters:
            is_database = name in _DATABASE_NAMES and "using" in parameters
            hint = " Did you mean 'using'?" if is_database else suggestion(str(name), parameters)
            raise InvalidStore(f"{where}['OPTIONS'] has no {name!r}.{hint}")


def _misspelt(store_class: type[BaseStore], options: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is said of each option that goes on to the client, and nearly is the store's."""
    parameters = list(inspect.signature(store_class).parameters)
    for name in map(str, options):
        same_letters = [it for it in parameters if sorted(it) == sorted(name)]
        near = same_letters or get_close_matches(name, parameters, 1, 0.8)
        if name not in parameters and near:
            yield f" Did you mean {near[0]!r} by {name!r}?"


def _reset(*, setting: str, **kwargs: Any) -> None:
    if setting in ("DATABASES", "IDEMPOTENCY"):
        stores.reset()


setting_changed.connect(_reset, dispatch_uid="django_idempotency.conf")
