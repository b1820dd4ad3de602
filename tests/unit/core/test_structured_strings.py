"""RFC 9651 Strings in the header field: the facts of HTTPWG's vectors, and the parameters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from django_idempotency import InvalidKey
from django_idempotency.keys import MAX_LENGTH, parse
from tests.services.processes import ROOT

SHARED = ROOT.parent / "shared" / "data"


class Case(NamedTuple):
    """A field value and the String that it carries, or None where parsing must fail."""

    field: str
    string: str | None


def _bytes_inside() -> dict[str, Case]:
    """Each byte between two spaces: VCHAR and SP stand, but the quote and the backslash."""
    return {
        f"0x{byte:02x} in string": Case(
            f'" {chr(byte)} "',
            f" {chr(byte)} " if 0x20 <= byte < 0x7F and byte not in (0x22, 0x5C) else None,
        )
        for byte in range(0x100)
    }


def _bytes_escaped() -> dict[str, Case]:
    """Each byte after a backslash: only the quote and the backslash may be escaped."""
    return {
        f"0x{byte:02x} escaped": Case(
            f'"\\{chr(byte)}"', chr(byte) if byte in (0x22, 0x5C) else None
        )
        for byte in range(0x100)
    }


NAMED = {
    "basic": Case('"foo bar"', "foo bar"),
    "empty": Case('""', ""),
    "long": Case(f'"{"foo " * 62}"', "foo " * 62),
    "white space only": Case('"   "', "   "),
    "not ASCII": Case('"füü"', None),
    "not ASCII as latin-1 reads UTF-8": Case('"fÃ¼Ã¼"', None),
    "outside latin-1": Case('"\u20ac"', None),
    "lone surrogate": Case('"\udcff"', None),
    "tab": Case('"\t"', None),
    "newline": Case('" \n "', None),
    "single quotes": Case("'foo'", None),
    "unbalanced": Case('"foo', None),
    "quote only": Case('"', None),
    "quoting": Case(r'"foo \"bar\" \\ baz"', r'foo "bar" \ baz'),
    "bad quoting": Case(r'"foo \,"', None),
    "escaped letter": Case(r'"a\b"', None),
    "ends with an escaped quote": Case(r'"foo \"', None),
    "ends with a backslash": Case('"foo \\', None),
    "two lines joined inside the string": Case('"foo, bar"', "foo, bar"),
    "two strings": Case('"foo", "bar"', None),
    "string and rest": Case('"foo"bar', None),
    "string and string": Case('"foo""bar"', None),
    "spaces before": Case('  "foo"', "foo"),
    "spaces after": Case('"foo"  ', "foo"),
    "spaces around": Case('  "foo"  ', "foo"),
    "tab before": Case(' \t "foo"', None),
    "tab after": Case('"foo" \t ', None),
    "newline after": Case('"foo"\n', None),
    "nothing": Case("", None),
    "integer": Case("1", None),
    "token": Case("foo", None),
    "byte sequence": Case(":Zm9v:", None),
    "boolean": Case("?1", None),
    "display string": Case('%"foo"', None),
    "inner list": Case('("foo")', None),
    "byte order mark": Case('\ufeff"foo"', None),
}

PARAMETERS = [
    ";v=1",  # integer
    ";v=-15",  # negative integer
    ";v=999999999999999",  # fifteen digits
    ";v=1.5",  # decimal
    ";v=-123456789012.125",  # long decimal
    ';v="x y"',  # string
    r';v="\"\\"',  # string with escapes
    ';v="a;b"',  # string with a semicolon
    ";v=text/html",  # token
    ";v=*a:b",  # token with a star
    ";v=a!#$%&'*+-.^_`|~",  # token with signs
    ";v=:cHJldGVuZA==:",  # bytes
    ";v=:cHJldGVuZA:",  # bytes without padding
    ";v=::",  # no bytes
    ";v=?1",  # true
    ";v=?0",  # false
    ";v=@1659578233",  # date
    ";v=@-62135596800",  # date before the epoch
    ';v=%"This is intended for display to %c3%bcsers."',  # display string
    ";v",  # flag
    ";a=1;b=2",  # two
    ";a=1;a=2",  # the same twice
    "; v=1",  # space after the semicolon
    ";a;b=?0;c=tok",  # flag and value
    ";*a_b-c.d*0=1",  # name with signs
]

NO_PARAMETERS = [
    ";",  # no name
    "; ",  # no name after the space
    ";v=",  # no value
    " ;v=1",  # space before the semicolon
    ";\tv=1",  # tab after the semicolon
    ";v= 1",  # space before the value
    ";v =1",  # space after the name
    ";V=1",  # upper-case name
    ";1=1",  # name starts with a digit
    ";v=1234567890123456",  # sixteen digits
    ";v=1.",  # decimal without a fraction
    ";v=.5",  # decimal without a whole
    ";v=1.2345",  # decimal with four digits
    ";v=1234567890123.1",  # decimal with thirteen digits
    ";v=-",  # sign only
    ";v=+1",  # plus
    ';v="x',  # string not ended
    r';v="\x"',  # string with a bad escape
    ";v=:cHJl",  # bytes not ended
    ";v=:!!:",  # bytes of other signs
    ";v=?2",  # boolean of another digit
    ";v=?",  # boolean without a digit
    ";v=@1.5",  # date with a fraction
    ";v=@",  # date of nothing
    ';v=%"%C3%BC"',  # display string with upper-case hex
    ';v=%"%c"',  # display string with half a byte
    ';v=%"%ff"',  # display string that is not UTF-8
    ';v=%"x',  # display string not ended
    ";v=(1)",  # inner list
    ";a=1b=2",  # no semicolon between
    ';v=1, "b"',  # comma after
]


def _shared() -> dict[str, Case]:
    """HTTPWG's vectors, which lie beside the checkout where the project is developed, or do not."""
    cases = {}
    for path in sorted(SHARED.glob("structured-fields-*.json")):
        for vector in json.loads(path.read_text()):
            string = None if vector.get("must_fail") else vector["expected"][0]
            if not isinstance(string, str):  # an Item of another type: no String
                string = None
            cases[f"{path.stem}: {vector['name']}"] = Case(", ".join(vector["raw"]), string)
    return cases


def wrong(cases: dict[str, Case]) -> list[str]:
    """
    Return the names of the cases that are not parsed as the specification says.

    A String that is no key, being blank or too long, is refused (R8, R9), and that is no fault.
    """
    return [name for name, case in cases.items() if parsed(case.field) != _key(case.string)]


def _key(string: str | None) -> str | None:
    is_key = string is not None and string.strip() and len(string) <= MAX_LENGTH
    return string if is_key else None


def parsed(field: str, *, strict: bool = True) -> str | None:
    """Return the key in the field, None if it is refused."""
    try:
        return parse(field, strict=strict)
    except InvalidKey:
        return None


def test_R5_each_byte_inside_a_string():
    assert wrong(_bytes_inside()) == []


def test_R5_each_byte_after_a_backslash():
    assert wrong(_bytes_escaped()) == []


def test_R3_string():
    assert wrong(NAMED) == []


def test_R3_vectors_of_HTTPWG():
    assert wrong(_shared()) == []


def test_R6_parameters_are_read_and_dropped():
    fields = [form % rest for rest in PARAMETERS for form in ('"abc"%s', ' "abc"%s ')]
    assert [field for field in fields if parsed(field) != "abc"] == []


@pytest.mark.parametrize("strict", [True, False], ids=["strict", "lenient"])
def test_R6_what_is_no_parameter_is_refused(strict):
    fields = [f'"abc"{rest}' for rest in NO_PARAMETERS]
    assert [field for field in fields if parsed(field, strict=strict) is not None] == []


def test_R5_a_long_hostile_field_is_refused_in_no_time():
    parse_all = ['"' + "\\" * 200_001, '"a"' + ";a=1" * 50_000 + ";", '"a"' + " " * 200_000 + "b"]
    for field in parse_all:
        with pytest.raises(InvalidKey):
            parse(field)


@given(st.text(alphabet=st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=MAX_LENGTH))
@settings(max_examples=50)
def test_R3_what_is_quoted_comes_back(key):
    quoted = key.replace("\\", "\\\\").replace('"', '\\"')
    assert parsed(f'"{quoted}"') == _key(key)


@given(st.text() | st.lists(st.sampled_from(list('"\\;=,: @?%()*aA1.-\t\x00é'))).map("".join))
def test_R5_any_text_is_a_key_or_invalid(field):
    for strict in (True, False):
        key = parsed(field, strict=strict)
        assert key is None or (1 <= len(key) <= MAX_LENGTH and key.isascii() and key.isprintable())


def test_the_shared_vectors_are_no_part_of_the_project():
    assert not SHARED.is_relative_to(ROOT)
    assert not list(Path(ROOT / "tests").rglob("structured-fields-*.json"))
