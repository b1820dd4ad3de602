"""RFC 9651 Strings in the header field: the facts of HTTPWG's vectors, and the parameters."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_idempotency import InvalidKey
from django_idempotency.keys import MAX_LENGTH, parse
from tests.services.processes import ROOT

SHARED = ROOT.parent / "shared" / "data"


#: A field value and the String that it carries, or None where parsing must fail.
CASES = {
    # Each byte between two spaces: VCHAR and SP stand, but the quote and the backslash.
    **{f'" {chr(byte)} "': f" {chr(byte)} " for byte in range(0x20, 0x7F) if byte not in b'"\\'},
    **{f'" {chr(byte)} "': None for byte in (*range(0x20), *b'"\\', *range(0x7F, 0x100))},
    # Each byte after a backslash: only the quote and the backslash may be escaped.
    **{f'"\\{chr(byte)}"': chr(byte) if byte in b'"\\' else None for byte in range(0x100)},
    **{'"foo bar"': "foo bar", '""': "", f'"{"foo " * 62}"': "foo " * 62, '"   "': "   "},
    **{r'"foo \"bar\" \\ baz"': r'foo "bar" \ baz', '"foo, bar"': "foo, bar"},
    **dict.fromkeys(('  "foo"', '"foo"  ', '  "foo"  '), "foo"),
    **dict.fromkeys(('"füü"', '"fÃ¼Ã¼"', '"\u20ac"', '"\udcff"', '\ufeff"foo"')),
    **dict.fromkeys(("'foo'", '"foo', '"', r'"foo \,"', r'"a\b"', r'"foo \"', '"foo \\')),
    **dict.fromkeys(
        ('"foo", "bar"', '"foo"bar', '"foo""bar"', ' \t "foo"', '"foo" \t ', '"foo"\n')
    ),
    **dict.fromkeys(("", "1", "foo", ":Zm9v:", "?1", '%"foo"', '("foo")')),
}
#: Integers, decimals, strings, tokens, bytes, booleans, dates, display strings, flags and names.
PARAMETERS = [";v=1", ";v=-15", ";v=999999999999999", ";v=1.5", ";v=-123456789012.125", ';v="x y"']
PARAMETERS += [r';v="\"\\"', ';v="a;b"', ";v=text/html", ";v=*a:b", ";v=a!#$%&'*+-.^_`|~", ";v=::"]
PARAMETERS += [";v=:cHJldGVuZA==:", ";v=:cHJldGVuZA:", ";v=?1", ";v=?0", ";v=@1659578233"]
PARAMETERS += [";v=@-62135596800", ';v=%"This is intended for display to %c3%bcsers."', ";v"]
PARAMETERS += [";a=1;b=2", ";a=1;a=2", "; v=1", ";a;b=?0;c=tok", ";*a_b-c.d*0=1"]
NO_PARAMETERS = [";", "; ", ";v=", " ;v=1", ";\tv=1", ";v= 1", ";v =1", ";V=1", ";1=1", ";v=1."]
NO_PARAMETERS += [
    ";v=1234567890123456",
    ";v=.5",
    ";v=1.2345",
    ";v=1234567890123.1",
    ";v=-",
    ";v=+1",
]
NO_PARAMETERS += [';v="x', r';v="\x"', ";v=:cHJl", ";v=:!!:", ";v=?2", ";v=?", ";v=@1.5", ";v=@"]
NO_PARAMETERS += [';v=%"%C3%BC"', ';v=%"%c"', ';v=%"%ff"', ';v=%"x', ";v=(1)", ";a=1b=2"]
NO_PARAMETERS += [';v=1, "b"']


def vectors():
    """HTTPWG's vectors, which lie beside the checkout where the project is developed, or do not."""
    for path in sorted(SHARED.glob("structured-fields-*.json")):
        for vector in json.loads(path.read_text()):
            string = None if vector.get("must_fail") else vector["expected"][0]
            # An Item of another type is no String.
            yield ", ".join(vector["raw"]), string if isinstance(string, str) else None


def wrong(cases):
    """Return the fields that are not parsed as the specification says."""
    return [field for field, string in cases if parsed(field) != _key(string)]


def _key(string):
    """A String that is no key, being blank or too long, is refused (R8, R9)."""
    is_key = string is not None and string.strip() and len(string) <= MAX_LENGTH
    return string if is_key else None


def parsed(field, *, strict=True):
    try:
        return parse(field, strict=strict)
    except InvalidKey:
        return None


def test_R3_R5_strings():
    assert wrong(CASES.items()) == []


def test_R3_vectors_of_HTTPWG_which_are_no_part_of_the_project():
    assert wrong(vectors()) == []
    assert not list(Path(ROOT / "tests").rglob("structured-fields-*.json"))


def test_R6_parameters_are_read_and_dropped_and_nothing_else():
    fields = [form % rest for rest in PARAMETERS for form in ('"abc"%s', ' "abc"%s ')]
    assert [field for field in fields if parsed(field) != "abc"] == []
    fields = [f'"abc"{rest}' for rest in NO_PARAMETERS]
    for strict in (True, False):
        assert [field for field in fields if parsed(field, strict=strict) is not None] == []


def test_R5_a_long_hostile_field_is_refused_in_no_time():
    parse_all = ['"' + "\\" * 200_001, '"a"' + ";a=1" * 50_000 + ";", '"a"' + " " * 200_000 + "b"]
    for field in parse_all:
        with pytest.raises(InvalidKey):
            parse(field)


@given(st.text(alphabet=st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=MAX_LENGTH))
def test_R3_what_is_quoted_comes_back(key):
    quoted = key.replace("\\", "\\\\").replace('"', '\\"')
    assert parsed(f'"{quoted}"') == _key(key)


@given(st.text() | st.lists(st.sampled_from(list('"\\;=,: @?%()*aA1.-\t\x00é'))).map("".join))
def test_R5_any_text_is_a_key_or_invalid(field):
    for strict in (True, False):
        key = parsed(field, strict=strict)
        assert key is None or (1 <= len(key) <= MAX_LENGTH and key.isascii() and key.isprintable())
