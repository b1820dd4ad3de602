"""Changes of the guard of Celery tasks, of the parents of children, and of keys of messages."""

from __future__ import annotations

from tests.proof.mutations import Mutation

DELIVERIES = "contrib/celery/deliveries.py"
PARENTS = "contrib/celery/parents.py"
EVENTS = "contrib/events.py"
KEYS = "tests/unit/celery/test_keys.py"
ENDINGS = "tests/unit/celery/test_endings.py"
MEETINGS = "tests/unit/celery/test_in_progress.py"
CHILDREN = "tests/unit/celery/test_parents.py"
BATCHES = "tests/unit/events/test_batches.py"

MUTATIONS = [
    # C1 to C3
    Mutation(
        "a bound task counts as its own first argument",
        DELIVERIES,
        "itself = bool(args) and isinstance(args[0], Task)",
        "itself = False",
        f"{KEYS} -k names_of_its_own",
    ),
    Mutation(
        "an argument that has its default is compared",
        "arguments.py",
        "        if not _is_default(value, parameters[name])\n",
        "",
        "tests/unit/core/test_idempotent_function.py -k has_its_default",
    ),
    Mutation(
        "members are compared by their names in Python",
        DELIVERIES,
        "{_name_as_sent(name): _as_sent(item)",
        "{str(name): _as_sent(item)",
        f"{KEYS} -k C3_a_direct_call",
    ),
    Mutation(
        "the fingerprint leaves out the operation",
        DELIVERIES,
        "(name.encode(), asked),",
        "(asked,),",
        f"{KEYS} -k C2_two_tasks",
    ),
    Mutation(
        "the operation is the name of the function, not of the task",
        DELIVERIES,
        "self.guard.operation or self.task.name",
        "self.guard.operation or self.guard.function.__name__",
        f"{KEYS} -k C2_two_tasks",
    ),
    Mutation(
        "tasks without a scope share one",
        DELIVERIES,
        "task.name if guard.scope is None else guard.scope",
        "guard.scope or _KIND",
        f"{KEYS} -k C2_two_tasks",
    ),
    Mutation(
        "a task that calls itself is guarded by its own id",
        DELIVERIES,
        "            if request.parent_id != request.id:\n                return None\n",
        "",
        f"{KEYS} -k calls_itself",
    ),
    Mutation(
        "the work gets the arguments of the message itself",
        DELIVERIES,
        "args, kwargs = _copy(args), _copy(dict(kwargs))",
        "args, kwargs = args, dict(kwargs)",
        f"{ENDINGS} -k arguments_that_were_sent",
    ),
    # C4, C5
    Mutation(
        "a result that is not kept ends a duplicate that is to be ignored",
        DELIVERIES,
        '                    if self.guard.on_duplicate == "ignore":\n'
        "                        raise Ignore(str(unavailable)) from unavailable\n",
        "",
        "tests/unit/celery/test_duplicates.py -k C4_it_ends",
    ),
    Mutation(
        "a result is kept that cannot be read back",
        "contrib/celery/codec.py",
        "            serialization.loads(data, content_type, encoding, accept=[content_type])\n",
        "",
        "tests/unit/celery/test_duplicates.py -k C5_R62",
    ),
    Mutation(
        "any serializer that kombu knows is read",
        "contrib/celery/codec.py",
        "return ({own} | accepted) - {PICKLE}",
        "return set(known.values()) - {PICKLE}",
        "tests/unit/celery/test_duplicates.py -k R95_a_serializer",
    ),
    # C6
    Mutation(
        "a duplicate waits for the whole lease",
        DELIVERIES,
        "max(min(record.running_for, record.lease_left), 1)",
        "max(record.lease_left, 1)",
        f"{MEETINGS} -k as_long_as_the_first",
    ),
    Mutation(
        "a duplicate is sent again past the lease",
        DELIVERIES,
        "max(min(record.running_for, record.lease_left), 1)",
        "max(record.running_for, 1)",
        f"{MEETINGS} -k as_long_as_the_first",
    ),
    Mutation(
        "every duplicate waits for as long as the alias says",
        DELIVERIES,
        'self.guard.on_in_progress == "wait" and transactions.may_wait()',
        "transactions.may_wait()",
        f"{MEETINGS} -k waits_if_it_is",
    ),
    Mutation(
        "an eager duplicate is sent again",
        DELIVERIES,
        "self.request.is_eager or self.request.called_directly",
        "self.request.called_directly",
        f"{MEETINGS} -k call_in_place",
    ),
    Mutation(
        "a duplicate is sent again from inside of the task",
        DELIVERIES,
        "in_place = in_place or self._record_id in [a.operation.record_id for a in entered()]\n",
        "\n",
        f"{MEETINGS} -k call_in_place",
    ),
    Mutation(
        "a stale record is asked again and again",
        DELIVERIES,
        "not in_place and not undecided",
        "not in_place",
        f"{MEETINGS} -k waits_for_an_operator",
    ),
    Mutation(
        "a duplicate goes through the task's own apply_async",
        DELIVERIES,
        "Task.apply_async(task, signature.args",
        "task.apply_async(signature.args",
        f"{MEETINGS} -k drops_no_message",
    ),
    Mutation(
        "a message that no broker keeps is lost in silence",
        DELIVERIES,
        "            if not task.acks_late:  # the message is gone: let it be seen\n"
        "                raise\n",
        "",
        f"{MEETINGS} -k broker_that_is_down",
    ),
    Mutation(
        "autoretry takes hold of a message that the broker is to keep",
        DELIVERIES,
        "class KeepMessage(Reject, Ignore):",
        "class KeepMessage(Reject):",
        f"{MEETINGS} -k broker_that_is_down",
    ),
    Mutation(
        "a task whose record is gone makes way",
        DELIVERIES,
        "        if lost.gone:\n            return False\n",
        "",
        f"{MEETINGS} -k makes_way_for_nobody",
    ),
    Mutation(
        "a task that has outlived its deadline makes way",
        DELIVERIES,
        "policy.renew and policy.deadline is None and lease.renewable",
        "policy.renew and lease.renewable",
        f"{MEETINGS} -k not_renewed",
    ),
    Mutation(
        "a lease that the work lost elsewhere is taken for its own",
        DELIVERIES,
        "ours = lost is not self._raised or lease.lost",
        "ours = True",
        f"{MEETINGS} -k makes_way_for_nobody",
    ),
    # C7
    Mutation(
        "a task that has sent a retry of itself is completed",
        DELIVERIES,
        "                    if self._retried:\n"
        '                        raise Unkept("fail", ending)\n',
        "",
        f"{ENDINGS} -k does_not_end_the_task",
    ),
    Mutation(
        "an ignored task may run again",
        DELIVERIES,
        "                ending = Ignored()\n",
        "                raise\n",
        f"{ENDINGS} -k how_a_task_and_its_record_end",
    ),
    Mutation(
        "a requeued task is failed, not released",
        DELIVERIES,
        'Unkept("release" if error.requeue else "fail", error=error)',
        'Unkept("fail", error=error)',
        f"{ENDINGS} -k how_a_task_and_its_record_end",
    ),
    Mutation(
        "a failure that is too large is kept",
        DELIVERIES,
        "            if len(self.guard.codec_for(self.task).encode(failed)) <= limit:\n"
        "                return failed\n",
        "            return failed\n",
        f"{ENDINGS} -k how_a_task_and_its_record_end",
    ),
    Mutation(
        "a soft time limit is kept as a failure",
        "contrib/celery/codec.py",
        "(IdempotencyError, SoftTimeLimitExceeded, TaskPredicate)",
        "(IdempotencyError, TaskPredicate)",
        f"{ENDINGS} -k how_a_task_and_its_record_end",
    ),
    Mutation(
        "one retry too many is waited for",
        DELIVERIES,
        "self.request.retries >= most",
        "self.request.retries > most",
        f"{ENDINGS} -k how_a_task_and_its_record_end",
    ),
    Mutation(
        "the limit of a call of retry() does not count",
        DELIVERIES,
        'most = getattr(task, "override_max_retries", None)',
        "most = None",
        f"{ENDINGS} -k how_a_task_and_its_record_end",
    ),
    Mutation(
        "the limit of autoretry does not count",
        DELIVERIES,
        '            most = getattr(task, "retry_kwargs", {}).get("max_retries")\n',
        "            pass\n",
        f"{ENDINGS} -k how_a_task_and_its_record_end",
    ),
    Mutation(
        "what is never retried is not final",
        DELIVERIES,
        "isinstance(error, retried) and not isinstance(error, excepted)",
        "isinstance(error, retried)",
        f"{ENDINGS} -k how_a_task_and_its_record_end",
    ),
    Mutation(
        "a duplicate of a final failure is retried",
        DELIVERIES,
        "            self.request.called_directly = True\n",
        "            pass\n",
        f"{ENDINGS} -k duplicate_of_a_final_failure",
    ),
    # C15
    Mutation(
        "children are named after the record, not after what was asked",
        PARENTS,
        "headers[HEADER] = str(lease.seed)",
        "headers[HEADER] = str(lease.record_id)",
        f"{CHILDREN} -k names_itself",
    ),
    Mutation(
        "a retry of a task is its child",
        PARENTS,
        "if lease is not None and not itself:",
        "if lease is not None:",
        f"{CHILDREN} -k retry_is_no_child",
    ),
    Mutation(
        "a task that replaces itself counts as retried",
        PARENTS,
        'described["retries"] > task.request.retries',
        'described["retries"] >= task.request.retries',
        f"{KEYS} -k replaces_itself",
    ),
    Mutation(
        "what follows a child has no parent",
        PARENTS,
        "for name in (HEADER, RECORD_HEADER) if name in given}",
        "for name in () if name in given}",
        f"{CHILDREN} -k what_follows",
    ),
    Mutation(
        "a parent that is given is replaced",
        PARENTS,
        "    if HEADER in headers:\n        return\n",
        "",
        f"{CHILDREN} -k parent_that_is_given",
    ),
    Mutation(
        "eagerly a child has no parent",
        PARENTS,
        "        lease = current()\n        return None if lease is None else lease.seed\n",
        "        return None\n",
        f"{CHILDREN} -k eagerly",
    ),
    # Events
    Mutation(
        "the parts of a composite run together",
        EVENTS,
        'escaped(part(message), "#") for part in parts',
        "part(message) for part in parts",
        "tests/unit/events/test_keys.py -k composite",
    ),
    Mutation(
        "the key of a message compares its receipt",
        EVENTS,
        '        """Return what is compared between deliveries of one key: nothing."""\n',
        '        """Return what is compared."""\n        return arguments\n',
        "tests/unit/events/test_keys.py -k receipt",
    ),
    Mutation(
        "two queues share the scope of their handler",
        EVENTS,
        "scope or _source(record) or _name_of(handler)",
        "scope or _name_of(handler)",
        f"{BATCHES} -k two_queues",
    ),
    Mutation(
        "two handlers of a queue share an operation",
        EVENTS,
        "operation or name_of(handler),",
        "operation,",
        f"{BATCHES} -k another_handler",
    ),
    Mutation(
        "an ordered batch goes on after a failure",
        EVENTS,
        "                failed.extend(identifiers[index:])\n                break\n",
        "                failed.append(identifiers[index])\n",
        f"{BATCHES} -k ordered_batch",
    ),
    Mutation(
        "a batch ends at a failure although no order is asked for",
        EVENTS,
        "(in_order is None and _is_ordered(record))",
        "in_order is None",
        f"{BATCHES} -k without_its_work",
    ),
    Mutation(
        "a batch starts whose last record could not be handed back",
        EVENTS,
        '    if found is _MISSING or found is None or found == "":\n',
        "    if found is _MISSING:\n",
        f"{BATCHES} -k could_not_be_handed_back",
    ),
]
