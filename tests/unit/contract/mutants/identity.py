"""Mutants that mistake fingerprints, epochs and tokens."""

from __future__ import annotations

from dataclasses import replace

from django_idempotency.claims import ClaimAgain
from django_idempotency.keys import new_token
from django_idempotency.leases import Lease
from django_idempotency.records import Record, State
from tests.unit.contract.mutants.base import mutant


@mutant("test_R70_I11_lapsed_lease_is_not_taken_over_by_another_fingerprint")
def take_over_compares_no_fingerprint(store, claim, request, seen):
    """A lapsed lease is taken over by another request."""
    if seen.stale and seen.fingerprint is not None:
        request = replace(request, fingerprints=(*request.fingerprints, seen.fingerprint))
    return claim(request)


@mutant("test_I11_I12_claim_of_a_failed_record_is_refused_to_another_fingerprint")
def failed_is_claimed_by_anything(store, claim, request, seen):
    """A failed record is claimed by another request."""
    if seen.state is State.FAILED and seen.fingerprint is not None:
        request = replace(request, fingerprints=(*request.fingerprints, seen.fingerprint))
    return claim(request)


@mutant("test_I6_any_of_the_fingerprints_may_match_and_the_kept_one_stays")
def take_over_replaces_the_fingerprint(store, claim, request):
    """A claim of a record that has a fingerprint stores the claimant's newest one."""
    claimed = claim(request)
    if isinstance(claimed, Lease):
        store.change(request.record_id, fingerprint=request.fingerprint)
    return claimed


@mutant("test_I6_any_of_the_fingerprints_may_match_and_the_kept_one_stays")
def only_the_newest_fingerprint_is_compared(store, claim, request):
    """A claim compares one fingerprint, so an upgrade turns retries into mismatches."""
    return claim(replace(request, fingerprints=request.fingerprints[:1]))


@mutant("test_R47_I6_refused_claim_is_sent_once_more_with_the_stored_fingerprint")
def refused_token_stays_refused(store, claim, request, seen):
    """A claim that was refused is refused again, whatever fingerprints it has by then."""
    if request.token in vars(store).setdefault("refused", set()):
        return seen
    claimed = claim(request)
    if isinstance(claimed, Record):
        vars(store).setdefault("refused", set()).add(request.token)
    return claimed


@mutant("test_newest_fingerprint_is_kept")
def oldest_fingerprint_is_kept(store, claim, request):
    """A claim stores the oldest fingerprint."""
    return claim(replace(request, fingerprints=request.fingerprints[::-1]))


@mutant("test_I2_epoch_grows_with_each_claim")
def epoch_stands_still(store, claim, request, seen):
    """The epoch of a record is that of its first claim."""
    claimed = claim(request)
    return claimed if isinstance(claimed, Record) else store.with_epoch(claimed, seen.epoch)


@mutant("test_I2_epoch_grows_faster_than_the_clock_if_need_be")
def epoch_is_the_clock(store, claim, request, seen):
    """The epoch is the clock, which may not have moved since the last claim."""
    if store.is_won(seen, request):
        store.change(request.record_id, epoch=0)
    return claim(request)


@mutant("test_I2_epoch_grows_over_a_sweep")
def epoch_counts_claims(store, claim, request):
    """The epoch counts the claims of a record, and begins again after a sweep."""
    seen = store.get(request.record_id)
    claimed = claim(request)
    if isinstance(claimed, Record) or (seen is not None and seen.token == request.token):
        return claimed
    return store.with_epoch(claimed, 1 if seen is None else seen.epoch + 1)


@mutant("test_I1_claim_of_a_new_key_is_won")
def token_is_the_stores(store, claim, request):
    """A claim draws a token of its own, so no resend of it is known."""
    return claim(replace(request, token=new_token()))


@mutant("test_R68_each_claim_has_its_own_token")
def token_is_reused(store, claim, request, seen):
    """A record keeps the token of its first claim."""
    if store.is_won(seen, request):
        request = replace(request, token=seen.token)
    return claim(request)


@mutant("test_R68_claim_whose_answer_was_lost_is_won_when_it_is_sent_again")
def resent_claim_is_refused(store, claim, request, seen):
    """A claim that is sent again, because its answer was lost, meets itself."""
    return seen if seen.live and seen.token == request.token else claim(request)


@mutant("test_R68_claim_whose_answer_was_lost_is_won_when_it_is_sent_again")
def resent_claim_is_another(store, claim, request, seen):
    """A claim that is sent again is another claim: the first answer's lease is lost."""
    if seen.live and seen.token == request.token:
        store.change(request.record_id, state=State.RELEASED)
    return claim(request)


@mutant("test_R68_claim_that_arrives_once_more_after_its_end_is_answered")
def ended_claim_is_an_error(store, claim, request, seen):
    """A claim that arrives once more after its end is answered by an exception."""
    if seen.token == request.token and seen.state in (State.FAILED, State.RELEASED):
        raise ClaimAgain
    return claim(request)


@mutant("test_R68_ended_attempt_wins_nothing_when_its_claim_arrives_once_more")
def ended_claim_runs_again(store, claim, request, seen):
    """A claim that arrives once more, after its attempt has completed, wins again."""
    if seen.state is State.COMPLETED and seen.token == request.token:
        store.change(request.record_id, state=State.RELEASED)
    return claim(request)
