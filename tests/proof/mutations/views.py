"""Changes of the guard of plain views: kinds, waiting, exceptions, middleware, forms, bodies."""

from __future__ import annotations

from tests.proof.mutations import Mutation

VIEWS, FORMS = "tests/unit/views", "tests/unit/forms"

MUTATIONS = [
    # Kinds, and what an answer is made of.
    Mutation(
        "a plain view's response is rendered after its work was kept",
        "http/views.py",
        "lambda: _rendered(_given(request, handle()))",
        "lambda: _given(request, handle())",
        f"{VIEWS}/test_kinds.py -k deferred_rendering",
    ),
    Mutation(
        "a coroutine view joins by default",
        "http/guard.py",
        "await in_thread(coroutine=True)",
        "await in_thread(coroutine=False)",
        f"{VIEWS}/test_async.py -k R18_default_of_async_views",
    ),
    Mutation(
        "a refusal that a coroutine view raises fails the attempt",
        "http/guard.py",
        "engine.aattempt(operation, guarded.on_error)",
        "engine.aattempt(operation)",
        f"{VIEWS}/test_exceptions.py -k R55",
    ),
    Mutation(
        "the end of a replayed answer's retention is not said",
        "http/guard.py",
        "        elif outcome.expires_at is not None:",
        "        elif outcome.expires_at is not None and not attempt.replayed:",
        f"{VIEWS}/test_answers.py -k R77",
    ),
    Mutation(
        "the view is guarded again within a guard",
        "http/views.py",
        "    if is_guarded_already(request):\n        return handle()\n",
        "",
        f"{VIEWS}/test_nested_guards.py -k handed_on_to",
    ),
    Mutation(
        "a request that was served once is never guarded again",
        "http/calls.py",
        "    return lease is not None and any(attempt.lease is lease for attempt in around)",
        "    return lease is not None",
        f"{VIEWS}/test_nested_guards.py -k served_twice",
    ),
    Mutation(
        "a problem of a guard within is kept as the work's answer",
        "http/calls.py",
        "        if (problem := problem_of(response)) is not None:\n"
        '            return "fail" if problem.retryable else "release"\n',
        "",
        f"{VIEWS}/test_nested_guards.py -k never_kept",
    ),
    # Exceptions.
    Mutation(
        "a refusal that Django answers fails the attempt",
        "http/views.py",
        '        raise Unkept("release" if refused else "fail", error=error)',
        '        raise Unkept("fail", error=error)',
        f"{VIEWS}/test_exceptions.py -k R55",
    ),
    Mutation(
        "the lost lease of a call within the work is told of this key",
        "http/guard.py",
        "            return isinstance(error, LeaseLost) and self.begun.lease.lost",
        "            return isinstance(error, LeaseLost)",
        f"{VIEWS}/test_exceptions.py -k R66",
    ),
    Mutation(
        "an error of an idempotent call in a hook is told of this key",
        "http/guard.py",
        "        return not _has_committed(self.begun)  # or else a hook of the work raised it",
        "        return True",
        f"{VIEWS}/test_exceptions.py -k R58",
    ),
    Mutation(
        "the redirect to the login page is kept",
        "http/calls.py",
        '    if _leads_to_login(response):\n        return "release"\n',
        "",
        "tests/unit/http/test_kept.py -k login_page",
    ),
    # fail_open.
    Mutation(
        "fail_open runs work again that has begun",
        "http/guard.py",
        "self.begun is None and isinstance(error, StoreError) and error.at_claim",
        "isinstance(error, StoreError)",
        f"{VIEWS}/test_answers.py -k never_after_the_claim",
    ),
    Mutation(
        "fail_open runs beside an attempt that a waiter has seen",
        "engine/__init__.py",
        "                return self._claim(attempt)\n            except StoreError as error:\n"
        "                error.at_claim = patience.fresh\n",
        "                return self._claim(attempt)\n            except StoreError as error:\n"
        "                error.at_claim = True\n",
        f"{VIEWS}/test_answers.py -k while_another",
    ),
    # Transactions.
    Mutation(
        "a guarded view has Django's transaction around it as well",
        "http/decorators.py",
        "    return mark(wrapper)\n",
        "    return wrapper\n",
        f"{VIEWS}/test_decorator.py -k R83_every_guarded_view",
    ),
    Mutation(
        "a method that is not guarded has no transaction of ATOMIC_REQUESTS",
        "http/views.py",
        "        with AtomicRequests(without=exempt_of(request)):\n            return handle()\n",
        "        return handle()\n",
        f"{VIEWS}/test_atomic_requests.py -k R83_R90",
    ),
    Mutation(
        "work that asked to be rolled back is kept",
        "http/guard.py",
        "                if requests.rolled_back() or doomed:",
        "                if doomed:",
        "tests/unit/http/test_work.py -k wished",
    ),
    Mutation(
        "a hook that raises takes the answer of committed work back",
        "http/guard.py",
        "            if not requests.committed:\n",
        "            if True:\n",
        "tests/unit/http/test_failures.py -k hook_that_raises",
    ),
    # Waiting.
    Mutation(
        "a waiter in a TestCase closes its pooled connection",
        "engine/transactions.py",
        '.get("pool") and not connection.in_atomic_block:',
        '.get("pool"):',
        f"{VIEWS}/test_waiting.py -k TestCase",
    ),
    Mutation(
        "a waiter in a TestCase closes it, for no caller has opened a block",
        "engine/transactions.py",
        '.get("pool") and not connection.in_atomic_block:',
        '.get("pool") and not _is_open_by_caller(connection):',
        f"{VIEWS}/test_waiting.py -k TestCase",
    ),
    Mutation(
        "nobody waits in a TestCase",
        "engine/transactions.py",
        "    return not _open_by_caller()\n",
        "    return not any(one.in_atomic_block for one in connections.all())\n",
        f"{VIEWS}/test_waiting.py -k TestCase",
    ),
    Mutation(
        "a waiter closes connections of no pool, too",
        "engine/transactions.py",
        'connection.settings_dict["OPTIONS"].get("pool") and not',
        "not",
        f"{VIEWS}/test_waiting.py -k keeps_others",
    ),
    Mutation(
        "a waiter keeps its pooled connection",
        "engine/__init__.py",
        "            attempt.operation.rest()\n",
        "",
        "tests/integration/views/test_pools.py -k R51_waiters_hold_no_pooled",
        leg="postgres18",
    ),
    Mutation(
        "a duplicate waits while it holds a caller's transaction",
        "engine/transactions.py",
        "    return not _open_by_caller()\n",
        "    return True\n",
        f"{VIEWS}/test_waiting.py -k callers_transaction",
    ),
    Mutation(
        "a waiter holds up the loop",
        "engine/__init__.py",
        "            await asyncio.sleep(pause)",
        "            time.sleep(pause)",
        f"{VIEWS}/test_waiting.py -k leaves_the_loop_free",
    ),
    Mutation(
        "a stale attempt is waited for",
        "engine/__init__.py",
        "if busy.stale or not (pause := patience.next()):\n"
        "                    raise\n            attempt",
        "if not (pause := patience.next()):\n                    raise\n            attempt",
        f"{VIEWS}/test_waiting.py -k R71",
    ),
    Mutation(
        "Prefer lengthens the policy's wait",
        "http/guard.py",
        "        return min(wait, timedelta(seconds=int(preferred[1]))) if preferred else wait",
        "        return timedelta(seconds=int(preferred[1])) if preferred else wait",
        f"{VIEWS}/test_waiting.py -k no_wait_by_default",
    ),
    Mutation(
        "a form does not wait unless the policy says so",
        "http/guard.py",
        "wait_or(_FORM_WAIT if from_form else timedelta(0))",
        "wait_or(timedelta(0))",
        f"{VIEWS}/test_waiting.py -k R89",
    ),
    Mutation(
        "who waits looks once",
        "engine/backoff.py",
        "        left = self._until - time.monotonic()",
        "        left = self._until - time.monotonic() if self.fresh else 0",
        f"{VIEWS}/test_waiting.py -k duplicates_wait_for_the_answer",
    ),
    # Coroutines.
    Mutation(
        "cancelled work goes unrecorded",
        "engine/__init__.py",
        "                                    error = await finish(ending)\n",
        "                                    error = raised\n"
        "                                    ending.close()\n",
        f"{VIEWS}/test_async.py -k cancelled_in_mid_work",
    ),
    Mutation(
        "coroutines of one loop share a connection",
        "engine/__init__.py",
        '            transaction != "separate"\n            and SyncToAsync',
        "            False\n            and SyncToAsync",
        "tests/integration/views/test_meetings.py -k failure_of_one",
        leg="postgres18",
    ),
    Mutation(
        "a claim that was won by a cancelled coroutine is not given back",
        "engine/__init__.py",
        'if isinstance(lease, Lease) and request.transaction != "single":',
        "if not isinstance(lease, Lease):",
        "tests/unit/core/test_cancellation.py -k R63_before_the_work",
    ),
    Mutation(
        "a coroutine view loses its ATOMIC_REQUESTS without a word",
        "http/calls.py",
        "        if coroutine:\n            refuse",
        "        if False:\n            refuse",
        "tests/unit/http/test_keyless.py -k R96_guarded_coroutine",
    ),
    # Class views and the middleware.
    Mutation(
        "a dispatch that passes the handler by is silent",
        "http/class_views.py",
        "return response if called else _unguarded(declared, type(view), request, response)",
        "return response",
        f"{VIEWS}/test_class_views.py -k passes_the_handler_by",
    ),
    Mutation(
        "the guard stands before the checks of a class view",
        "http/class_views.py",
        "    if not calls_handler(view_class):\n        return None\n",
        "    return None\n",
        f"{VIEWS}/test_class_views.py -k R34_check_of_a_mixin",
    ),
    Mutation(
        "a method that the view lacks is claimed",
        "http/class_views.py",
        "    handler = getattr(view, name, None)\n    if handler is None:\n        return None\n",
        "    handler = getattr(view, name, view.http_method_not_allowed)\n",
        f"{VIEWS}/test_class_views.py -k R15",
    ),
    Mutation(
        "the middleware guards PUT",
        "http/middleware.py",
        'frozenset({"POST", "PATCH"})',
        'frozenset({"POST", "PATCH", "PUT"})',
        f"{VIEWS}/test_middleware.py -k R13",
    ),
    Mutation(
        "the middleware guards a method that has a policy of its own",
        "http/middleware.py",
        "    if is_marked(view) or is_marked(method):",
        "    if is_marked(view):",
        f"{VIEWS}/test_middleware.py -k keeps_its_policy",
    ),
    Mutation(
        "the middleware guards views of Django REST framework",
        "http/middleware.py",
        "isinstance(view_class, type) and issubclass(view_class, drf.APIView)",
        "False",
        f"{VIEWS}/test_middleware.py -k of_drf_without_a_guard",
    ),
    Mutation(
        "the middleware parses forms of csrf_exempt views",
        "http/middleware.py",
        "replace(self._declared, form=False)",
        "replace(self._declared, form=True)",
        f"{VIEWS}/test_middleware.py -k R89_middleware_looks_for_no_key",
    ),
    # Callables of the policy.
    Mutation(
        "an awaitable counts as a yes",
        "http/content.py",
        "    if inspect.isawaitable(answer):",
        "    if inspect.isasyncgen(answer):",
        f"{VIEWS}/test_coroutine_callables.py -k awaitable",
    ),
    # Forms: whose key, and which.
    Mutation(
        "a form's key counts where nobody owns it",
        "http/content.py",
        "    return key if key is None or http.scope or has_owner(request) else None",
        "    return key",
        f"{FORMS}/test_visitors.py -k session_is_gone",
    ),
    Mutation(
        "a cookie alone is a session",
        "http/scopes.py",
        "    return bool(visitor.exists(key) or type(visitor)(key).load())",
        "    return True",
        f"{FORMS}/test_sessions.py -k cookie_alone",
    ),
    Mutation(
        "a visitor's scope is the session's key",
        "http/scopes.py",
        "session_token(visitor).encode()",
        "visitor.session_key.encode()",
        f"{FORMS}/test_sessions.py -k outlives",
    ),
    Mutation(
        "two clicks at once name a session differently",
        "http/scopes.py",
        "hashlib.sha256(key.encode()).hexdigest() if known else",
        "secrets.token_hex(32) if known else",
        f"{FORMS}/test_sessions.py -k two_clicks_at_once",
    ),
    Mutation(
        "the CSRF token counts",
        "http/content.py",
        "for name, value in pairs if name != _CSRF_FIELD]",
        "for name, value in pairs]",
        f"{FORMS}/test_double_click.py -k csrf_token_is_not",
    ),
    Mutation(
        "a key in a form need not be ASCII",
        "http/guard.py",
        "            if not value.isascii():",
        "            if False:",
        f"{FORMS}/test_double_click.py -k no_key_is_400",
    ),
    # Bodies.
    Mutation(
        "the name of an upload does not count",
        "http/content.py",
        "[name, upload.name, upload.content_type, _digest(upload)]\n        for",
        "[name, upload.content_type, _digest(upload)]\n        for",
        f"{FORMS}/test_uploads.py -k changed_part",
    ),
    Mutation(
        "a form is parsed for the view before it has read it",
        "http/content.py",
        "(read or not is_multipart or hasattr",
        "(True or hasattr",
        f"{FORMS}/test_uploads.py -k reads_the_form_as_it_likes",
    ),
    Mutation(
        "a form is parsed apart for each who asks",
        "http/content.py",
        "    if not hasattr(request, _PARSED):\n",
        "    if True:\n",
        f"{FORMS}/test_uploads.py -k csrf_exempt_view",
    ),
    Mutation(
        "a large body of unknown length is refused",
        "http/spool.py",
        "    if declared_length(request) is not None:\n        return is_declared_large(request)\n",
        "    return is_declared_large(request)\n",
        f"{FORMS}/test_bodies.py -k length_that_nobody",
    ),
    Mutation(
        "a refused form is the guard's error",
        "http/content.py",
        "        with suppress(*_REFUSED):\n            return parsed_body(*_form(request))\n",
        "        return parsed_body(*_form(request))\n",
        f"{FORMS}/test_bodies.py -k R80",
    ),
]
