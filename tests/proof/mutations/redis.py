"""Changes of the Redis store."""

from __future__ import annotations

from functools import partial

from tests.proof.mutations import Mutation

TESTS = "tests/integration/redis"
STORE = "stores/redis/store.py"
CLIENTS = "stores/redis/clients.py"
ROWS = "stores/redis/rows.py"
SCRIPTS = "stores/redis/scripts.py"

#: No test of this store asks which database the project has.
Change = partial(Mutation, leg="sqlite")

MUTATIONS = [
    # Pages.
    Change(
        "a page is longer than its limit",
        STORE,
        "self._look_at(place.left[:room])",
        "self._look_at(place.left)",
        f"{TESTS}/test_browse.py -k every_record_once",
    ),
    Change(
        "a page goes on until it is full, however many keys are somebody else's",
        STORE,
        "for _ in range(SCANS):",
        "for _ in range(1_000_000):",
        f"{TESTS}/test_browse.py -k some_scans",
    ),
    Change(
        "a prefix is a pattern",
        STORE,
        '_GLOB.sub(r"\\\\\\1", self.prefix)',
        "self.prefix",
        f"{TESTS}/test_browse.py -k as_it_is",
    ),
    Change(
        "a cursor may be anything",
        ROWS,
        "match is None or not any(match.groups()[1:])",
        "match is None",
        f"{TESTS}/test_browse.py -k cursor",
    ),
    # The marker of a prefix.
    Change(
        "a prefix of another project is taken",
        SCRIPTS,
        "return ours and 1 or 0",
        "return 1",
        f"{TESTS}/test_owner.py -k I10",
    ),
    Change(
        "a coroutine does not look whose the prefix is",
        STORE,
        "            self._take_prefix(await self._clients.arun(OWNER, marker, note))\n",
        "            await self._clients.arun(OWNER, marker, note)\n",
        f"{TESTS}/test_coroutines.py -k another_secret",
    ),
    Change(
        "each claim looks whose the prefix is",
        STORE,
        "        self._is_ours = True\n",
        "        pass\n",
        f"{TESTS}/test_owner.py -k asked_for_once",
    ),
    Change(
        "a new secret is not noted beside the old",
        SCRIPTS,
        "if ours and note and not known[1] then",
        "if ours and note and redis.call('EXISTS', KEYS[1]) == 0 then",
        f"{TESTS}/test_owner.py -k rotation",
    ),
    Change(
        "the check takes the prefix",
        STORE,
        "owner_arguments(self.prefix, note=False)",
        "owner_arguments(self.prefix, note=True)",
        f"{TESTS}/test_owner.py -k E016",
    ),
    # Connections.
    Change(
        "a call is not sent again over a new connection",
        CLIENTS,
        "RESENDS = 1",
        "RESENDS = 0",
        f"{TESTS}/test_answers.py -k cut_off",
    ),
    Change(
        "a call that takes too long is sent again",
        CLIENTS,
        "retry = Retry(NoBackoff(), RESENDS, (ConnectionError,))",
        "retry = Retry(NoBackoff(), 5, (ConnectionError, redis.TimeoutError))",
        f"{TESTS}/test_answers.py -k R61",
    ),
    Change(
        "a forked child waits for a mutex of its parent's threads",
        CLIENTS,
        '        """Build the client anew when it is next used: in a forked child."""\n'
        "        self._mutex = threading.Lock()\n",
        '        """Build the client anew when it is next used: in a forked child."""\n',
        f"{TESTS}/test_processes.py -k wait",
    ),
    Change(
        "a forked child uses its parent's client of a cluster",
        CLIENTS,
        "        self._of_parents.append(self._client)\n        self._client = None\n",
        "",
        f"{TESTS}/test_cluster.py -k looks_for_the_nodes",
    ),
    Change(
        "a forked child closes its parent's connections",
        CLIENTS,
        "        self._of_parents.append(self._client)\n",
        "",
        f"{TESTS}/test_cluster.py -k looks_for_the_nodes",
    ),
    Change(
        "clients are kept for ever",
        CLIENTS,
        "weakref.WeakSet[Clients] = weakref.WeakSet()",
        "set[Clients] = set()",
        f"{TESTS}/test_processes.py -k not_kept",
    ),
    # Coroutines.
    Change(
        "a loop's client is not closed with its loop",
        CLIENTS,
        "                await client.aclose()\n",
        "                pass\n",
        f"{TESTS}/test_coroutines.py -k closes_them",
    ),
    Change(
        "a loop that was closed without a shutdown is kept",
        CLIENTS,
        "if other.is_closed()]:",
        "if other is loop]:",
        f"{TESTS}/test_coroutines.py -k forgotten",
    ),
    Change(
        "a coroutine that finds all connections in use is refused",
        CLIENTS,
        "pool = redis.asyncio.BlockingConnectionPool.from_url(\n"
        "            str(self._url), **self._of_pool(options)\n",
        "pool = redis.asyncio.ConnectionPool.from_url(\n"
        "            str(self._url), **{**self._of_pool(options), 'timeout': None}\n",
        f"{TESTS}/test_coroutines.py -k more_coroutines",
    ),
    Change(
        "a coroutine's renewals do not tell a server the script that it has forgotten",
        CLIENTS,
        "            if _is_unknown(answers):\n                await",
        "            if False:\n                await",
        f"{TESTS}/test_coroutines.py -k told_them_again",
    ),
    # A cluster.
    Change(
        "a node that is away is waited for once for each lease",
        CLIENTS,
        "isinstance(answer, StoreError) and time.monotonic() < ends",
        "isinstance(answer, StoreError)",
        f"{TESTS}/test_cluster.py -k waited_for_once",
    ),
    Change(
        "one node that is away makes all renewals fail",
        STORE,
        "if errors and len(errors) == len(answers):",
        "if errors:",
        f"{TESTS}/test_cluster.py -k waited_for_once",
    ),
    Change(
        "a record that has moved is not looked for",
        CLIENTS,
        "                    answers[place] = self.run(script, *calls[place])\n",
        "                    pass\n",
        f"{TESTS}/test_cluster.py -k moved",
    ),
    Change(
        "a page of a cluster has the records of its first node",
        CLIENTS,
        "            if names[place + 1 :]:\n",
        "            if names[place + 2 :]:\n",
        f"{TESTS}/test_cluster.py -k test_cluster",
    ),
    # Replicas.
    Change(
        "a claim that too few replicas have is won",
        STORE,
        "        if reached < wanted:\n",
        "        if reached < 0:\n",
        f"{TESTS}/test_replicas.py -k given_back",
    ),
    Change(
        "a coroutine's claim waits for no replica",
        STORE,
        "            return await sync_to_async(self._replicated, thread_sensitive=False)"
        "(claimed, attempts)\n",
        "            return claimed\n",
        f"{TESTS}/test_replicas.py -k given_back",
    ),
    Change(
        "a claim after a failure that is given back forgets the fingerprint",
        STORE,
        "            if attempts == 1:\n",
        "            if attempts:\n",
        f"{TESTS}/test_replicas.py -k I6",
    ),
    Change(
        "a claim that is sent again with the WAIT writes nothing",
        SCRIPTS,
        "  redis.call('HSET', KEYS[1], 'token', token)   -- a write,",
        "  --",
        f"{TESTS}/test_replicas.py -k own_connection",
    ),
    Change(
        "a claim that was lost and won again keeps its first epoch",
        STORE,
        "            lease = again\n",
        "            pass\n",
        f"{TESTS}/test_replicas.py -k new_epoch",
    ),
    Change(
        "a claim that was lost to another is won",
        STORE,
        "            return again\n",
        "            return lease\n",
        f"{TESTS}/test_replicas.py -k won_by_another",
    ),
    # Lost answers.
    Change(
        "a claim does not recognise what it has written",
        SCRIPTS,
        "if state == 'IN_PROGRESS' and owner == token then",
        "if state == 'IN_PROGRESS' and owner == epoch then",
        f"{TESTS}/test_contract.py -k R68_claim_whose_answer",
    ),
    Change(
        "a completion does not recognise what it has written",
        SCRIPTS,
        "if seen[1] == 'COMPLETED' then",
        "if seen[1] == 'RELEASED' then",
        f"{TESTS}/test_answers.py -k completion",
    ),
    Change(
        "a decision does not recognise what it has written",
        SCRIPTS,
        "if seen[3] == token then",
        "if seen[3] == epoch then",
        f"{TESTS}/test_contract.py -k resolution_whose_answer",
    ),
    # Records.
    Change(
        "a resolution loses digits of the epoch",
        SCRIPTS,
        "'epoch', whole(tonumber(epoch) + 1)",
        "'epoch', tostring(tonumber(epoch) + 1)",
        f"{TESTS}/test_records.py -k I2",
    ),
    Change(
        "a record without a creation is won",
        SCRIPTS,
        "epoch and owner and created_at and attempts",
        "epoch and owner",
        f"{TESTS}/test_records.py -k never_runs_again",
    ),
    Change(
        "the server deletes a record under a lease that was renewed",
        SCRIPTS,
        "if expires_at and lease_until > expires_at then",
        "if false then",
        f"{TESTS}/test_records.py -k I9",
    ),
    Change(
        "expiry is left to the server",
        SCRIPTS,
        "local expired = expires_at and expires_at <= now and not live\nlocal same",
        "local expired = false\nlocal same",
        f"{TESTS}/test_records.py -k R74",
    ),
    Change(
        "a renewal first writes what can take memory",
        SCRIPTS,
        "redis.call('HDEL', KEYS[1], 'lease_until')\n"
        "redis.call('HSET', KEYS[1], 'lease_until', whole(lease_until))",
        "redis.call('HSET', KEYS[1], 'lease_until', whole(lease_until))",
        f"{TESTS}/test_answers.py -k memory",
    ),
    Change(
        "a claim begins with a command that a full server takes",
        SCRIPTS,
        "if state then\n  redis.call('DEL', KEYS[1])  ",
        "if true then\n  redis.call('DEL', KEYS[1])  ",
        f"{TESTS}/test_answers.py -k memory",
    ),
    Change(
        "a damaged record hides the others of its page",
        STORE,
        'logger.error("Record %s cannot be shown. %s", keys.short(record_id), error)',
        "raise",
        f"{TESTS}/test_records.py -k hides_no_other",
    ),
    Change(
        "a completed record without a result is replayed",
        ROWS,
        "if record.state is State.COMPLETED and record.result is None:",
        "if record.state is State.RELEASED and record.result is not None:",
        f"{TESTS}/test_records.py -k R95_forged",
    ),
    # Places, checks and options.
    Change(
        "a URL beside sentinels says nothing",
        CLIENTS,
        "**options, **parsed, **(",
        "**options, **(",
        f"{TESTS}/test_places.py -k sentinels",
    ),
    Change(
        "a server of any policy is good",
        STORE,
        '- {"noeviction"}:',
        '- {"noeviction", "volatile-ttl"}:',
        f"{TESTS}/test_check.py -k W008",
    ),
    Change(
        "a check tells the password",
        CLIENTS,
        "return f\"{options.get('host', 'localhost')}:{options.get('port', 6379)}\"",
        "return str(self._url)",
        f"{TESTS}/test_check.py -k W009",
    ),
    Change(
        "the client's own option is taken for the store's",
        CLIENTS,
        '"decode_responses", "retry", "retry_on_error"',
        '"retry", "retry_on_error"',
        f"{TESTS}/test_options.py -k refused",
    ),
    Change(
        "a store needs a right that the documentation does not give",
        STORE,
        "asked = owner_arguments(self.prefix, note=False)\n",
        "asked = owner_arguments(self.prefix, note=False)\n"
        "        self._clients._client.config_get('maxmemory')\n",
        f"{TESTS}/test_options.py -k rights",
    ),
]
