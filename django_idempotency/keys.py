"""Idempotency keys: reading them from a header field, their bounds, and the ids made of them."""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from collections.abc import Callable
from functools import cache
from typing import Any
from urllib.parse import unquote_to_bytes
from uuid import UUID, uuid4

from django_idempotency.exceptions.base import InvalidKey

#: The most characters a key may have (R9), and the size of every text column of a record.
MAX_LENGTH = 255
#: The kinds of adapters: requests, tasks, and calls of `run` and its like.
KINDS = ("http", "task", "call")

# RFC 9651, section 4.2: an Item that is a String, with parameters, which are read and dropped.
_STRING = r'"(?:[\x20\x21\x23-\x5B\x5D-\x7E]|\\["\\])*"'
_BARE_ITEM = "|".join(
    (
        r"-?[0-9]{1,12}\.[0-9]{1,3}",  # Decimal
        r"-?[0-9]{1,15}",  # Integer
        r"@-?[0-9]{1,15}(?!\.)",  # Date
        _STRING,
        r"[A-Za-z*][!#$%&'*+\-.^_`|~0-9A-Za-z:/]*",  # Token
        r":[A-Za-z0-9+/=]*:",  # Byte Sequence
        r"\?[01]",  # Boolean
        r'%"(?:[\x20\x21\x23\x24\x26-\x7E]|%[0-9a-f]{2})*"',  # Display String
    )
)
_PARAMETER = rf";\x20*[a-z*][a-z0-9_\-.*]*(?:=(?:{_BARE_ITEM}))?"
_QUOTED = re.compile(rf'%"(?P<display>[^"]*)"|{_STRING}')
_ESCAPE = re.compile(r'\\(["\\])')
# What every SDK sends: the key's characters without quotes. A comma would be a list of two fields.
_BARE_KEY = re.compile(r"[\x20\x21\x23-\x2B\x2D-\x7E]*")
_UNPRINTABLE = re.compile(r"[\x00-\x1F\x7F-\x9F\uD800-\uDFFF]")


#: Returns the random half of an attempt's proof of ownership: 122 bits, unguessable. A well-formed
#: UUID, since MariaDB's type refuses what is none.
new_token: Callable[[], UUID] = uuid4


@cache
def _string_item() -> re.Pattern[str]:
    """Return the pattern of a quoted key; to compile it takes milliseconds of a start."""
    return re.compile(rf"\x20*({_STRING})((?:{_PARAMETER})*)\x20*", re.ASCII)


def parse(
    field: str, *, strict: bool = False, min_length: int = 1, max_length: int = MAX_LENGTH
) -> str:
    """
    Return the key that the value of an ``Idempotency-Key`` field carries (R3 to R9).

    A structured-field String (RFC 9651, section 3.3.3) and, unless `strict`, the same characters
    bare. Lengths count characters after unquoting. Raises InvalidKey.
    """
    if '"' in field and (match := _string_item().fullmatch(field)) and _is_utf8(match[2]):
        key = _ESCAPE.sub(r"\1", match[1][1:-1])
    elif strict:
        raise InvalidKey(
            "The idempotency key must be a structured-field String: characters between double "
            "quotes (RFC 9651, section 3.3.3).",
            code="not_quoted",
        )
    else:
        key = field.strip(" ")
        if not _BARE_KEY.fullmatch(key):
            raise InvalidKey(
                "The idempotency key must be one structured-field String (RFC 9651), or the same "
                "printable ASCII characters without quotes and commas.",
                code="not_quoted_or_bare",
            )
    return _within_bounds(key, min_length, max_length)


def check(key: Any, *, min_length: int = 1, max_length: int = MAX_LENGTH) -> str:
    """Return `key` if it may be used as an idempotency key; raise InvalidKey if not."""
    if not issubclass(type(key), str):  # a lazy object says that it is an instance
        raise InvalidKey(f"An idempotency key is a str, not {type(key).__name__}.")
    if _UNPRINTABLE.search(key):
        raise InvalidKey(
            "The idempotency key has a character that cannot be printed.", code="unprintable"
        )
    return _within_bounds(key, min_length, max_length)


def _within_bounds(key: str, min_length: int, max_length: int) -> str:
    if not key.strip():
        raise InvalidKey("The idempotency key is empty.", code="empty")
    if not min_length <= len(key) <= max_length:
        raise InvalidKey(
            "The idempotency key has %(length)s characters; %(least)s to %(most)s are allowed.",
            code="length",
            params={"length": len(key), "least": min_length, "most": max_length},
        )
    return key


def new_key(
    *, time_ordered: bool = False, min_length: int = 1, max_length: int = MAX_LENGTH
) -> str:
    """
    Return a new key that cannot be guessed.

    A UUIDv4 or, with `time_ordered`, a UUIDv7 (RFC 9562, section 5.7); random text of 6 bits per
    character if the bounds do not allow a UUID.
    """
    key = str(_uuid7() if time_ordered else uuid4())
    if min_length <= len(key) <= max_length:
        return key
    length = max_length if max_length < len(key) else min_length
    return secrets.token_urlsafe(length)[:length]


def _is_utf8(parameters: str) -> bool:
    """Whether the Display Strings among the parameters decode (RFC 9651, section 4.2.10)."""
    try:
        for quoted in _QUOTED.finditer(parameters):
            unquote_to_bytes(quoted["display"] or "").decode()
    except UnicodeDecodeError:
        return False
    return True


def is_scope(scope: Any) -> bool:
    """Return whether `scope` can be one: a string that is not empty."""
    return issubclass(type(scope), str) and scope != ""


def record_id(kind: str, scope: str, key: str) -> UUID:
    """
    Return the record id of a key: a UUIDv8 (RFC 9562, section 5.8) of its SHA-256.

    `kind` is the kind of adapter: keys of HTTP requests, tasks and calls never meet. The parts
    are prefixed with their lengths, so that ``("a", "bc")`` and ``("ab", "c")`` differ.
    """
    return _uuid8(kind.encode(), scope.encode(errors="surrogatepass"), key.encode())


def seed(record_id: UUID, digest: bytes) -> UUID:
    """
    Return the seed of a request's derived keys: a UUIDv8 of its record id and its digest.

    It contains no secret, so that a rotation of secrets changes no derived key.
    """
    return _uuid8(b"seed", record_id.bytes, digest)


def record_ids(scope: str, key: str) -> tuple[UUID, ...]:
    """Return the record ids that a key of this scope may have: one for each kind of adapter."""
    return tuple(record_id(kind, scope, key) for kind in KINDS)


def derive(seed: UUID, name: str) -> UUID:
    """Return the key of a downstream call called `name`: a UUIDv8 made of the request's seed."""
    if not isinstance(name, str):
        raise TypeError(f"derive_key() takes the name of a call, not {name!r}.")
    return _uuid8(b"derived", seed.bytes, name.encode())


def of_step(record_id: UUID, name: str) -> UUID:
    """Return what the result of a step is sealed for: a UUIDv8 of its record and its name."""
    return _uuid8(b"step", record_id.bytes, name.encode())


def short(identifier: UUID) -> str:
    """Return the name of a record in the log: the first 12 characters of its id (R79)."""
    return str(identifier)[:12]


def bounded(text: str, limit: int = MAX_LENGTH) -> str:
    """
    Return `text` as a column of `limit` characters can hold it.

    A longer text keeps its beginning and gets a digest for its end. Only for people to read: the
    record id and the fingerprint are made of the whole.
    """
    text = _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)
    if len(text) <= limit:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return f"{text[: limit - 17]}~{digest}"


def columns(*texts: str) -> list[str]:
    """Return texts as columns of a record hold them: see `bounded`."""
    # Most of them are short and printable, and few of those are not by the pattern.
    return [it if len(it) <= MAX_LENGTH and it.isprintable() else bounded(it) for it in texts]


def _uuid8(*parts: bytes) -> UUID:
    text = b"".join([len(part).to_bytes(8, "big") + part for part in parts])
    return _versioned(int.from_bytes(hashlib.sha256(text).digest()[:16], "big"), 8)


def _uuid7() -> UUID:
    """Return a UUIDv7: 48 bits of milliseconds since 1970, then random ones."""
    milliseconds = time.time_ns() // 1_000_000
    return _versioned(milliseconds << 80 | secrets.randbits(80), 7)


def _versioned(number: int, version: int) -> UUID:
    number = number & ~(0xF << 76) | version << 76
    number = number & ~(0x3 << 62) | 0x2 << 62  # variant of RFC 9562
    return UUID(int=number)
