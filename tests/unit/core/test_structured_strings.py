"""RFC 9651 Strings in the header field: the facts of HTTPWG's vectors, and the parameters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
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

PARAMETERS = {
    "integer": ";v=1",
    "negative integer": ";v=-15",
    "fifteen digits": ";v=999999999999999",
    "decimal": ";v=1.5",
    "long decimal": ";v=-123456789012.125",
    "string": ';v="x y"',
    "string with escapes": r';v="\"\\"',
    "string with a semicolon": ';v="a;b"',
    "token": ";v=text/html",
    "token with a star": ";v=*a:b",
    "token with signs": ";v=a!#$%&'*+-.^_`|~",
    "bytes": ";v=:cHJldGVuZA==:",
    "bytes without padding": ";v=:cHJldGVuZA:",
    "no bytes": ";v=::",
    "true": ";v=?1",
    "false": ";v=?0",
    "date": ";v=@1659578233",
    "date before the epoch": ";v=@-62135596800",
    "display string": ';v=%"This is intended for display to %c3%bcsers."',
    "flag": ";v",
    "two": ";a=1;b=2",
    "the same twice": ";a=1;a=2",
    "space after the semicolon": "; v=1",
    "flag and value": ";a;b=?0;c=tok",
    "name with signs": ";*a_b-c.d*0=1",
}

NO_PARAMETERS = {
    "no name": ";",
    "no name after the space": "; ",
    "no value": ";v=",
    "space before the semicolon": " ;v=1",
    "tab after the semicolon": ";\tv=1",
    "space before the value": ";v= 1",
    "space after the name": ";v =1",
    "upper-case name": ";V=1",
    "name starts with a digit": ";1=1",
    "sixteen digits": ";v=1234567890123456",
    "decimal without a fraction": ";v=1.",
    "decimal without a whole": ";v=.5",
    "decimal with four digits": ";v=1.2345",
    "decimal with thirteen digits": ";v=1234567890123.1",
    "sign only": ";v=-",
    "plus": ";v=+1",
    "string not ended": ';v="x',
    "string with a bad escape": r';v="\x"',
    "bytes not ended": ";v=:cHJl",
    "bytes of other signs": ";v=:!!:",
    "boolean of another digit": ";v=?2",
    "boolean without a digit": ";v=?",
    "date with a fraction": ";v=@1.5",
    "date of nothing": ";v=@",
    "display string with upper-case hex": ';v=%"%C3%BC"',
    "display string with half a byte": ';v=%"%c"',
    "display string that is not UTF-8": ';v=%"%ff"',
    "display string not ended": ';v=%"x',
    "inner list": ";v=(1)",
    "no semicolon between": ";a=1b=2",
    "comma after": ';v=1, "b"',
}


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


def _parametrize(cases: dict[str, Case]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", cases.values(), ids=cases.keys())


def check(case: Case) -> None:
    """
    Parse the way of the specification, and then with what R8 and R9 ask of a key.

    A String that is no key, being blank or too long, is refused, and that alone is no fault.
    """
    if case.string is None or not case.string.strip() or len(case.string) > MAX_LENGTH:
        with pytest.raises(InvalidKey):
            parse(case.field, strict=True)
    else:
        assert parse(case.field, strict=True) == case.string


@_parametrize(_bytes_inside())
def test_R5_each_byte_inside_a_string(case):
    check(case)


@_parametrize(_bytes_escaped())
def test_R5_each_byte_after_a_backslash(case):
    check(case)


@_parametrize({**NAMED, **_shared()})
def test_R3_string(case):
    check(case)


@pytest.mark.parametrize("parameters", PARAMETERS.values(), ids=PARAMETERS.keys())
def test_R6_parameters_are_read_and_dropped(parameters):
    assert parse(f'"abc"{parameters}', strict=True) == "abc"
    assert parse(f' "abc"{parameters} ') == "abc"


@pytest.mark.parametrize("rest", NO_PARAMETERS.values(), ids=NO_PARAMETERS.keys())
@pytest.mark.parametrize("strict", [True, False], ids=["strict", "lenient"])
def test_R6_what_is_no_parameter_is_refused(rest, strict):
    with pytest.raises(InvalidKey):
        parse(f'"abc"{rest}', strict=strict)


def test_R5_a_long_hostile_field_is_refused_in_no_time():
    parse_all = ['"' + "\\" * 200_001, '"a"' + ";a=1" * 50_000 + ";", '"a"' + " " * 200_000 + "b"]
    for field in parse_all:
        with pytest.raises(InvalidKey):
            parse(field)


@given(st.text(alphabet=st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=MAX_LENGTH))
def test_R3_what_is_quoted_comes_back(key):
    quoted = key.replace("\\", "\\\\").replace('"', '\\"')
    check(Case(f'"{quoted}"', key))


@given(st.text())
def test_R5_any_text_is_a_key_or_invalid(field):
    for strict in (True, False):
        try:
            key = parse(field, strict=strict)
        except InvalidKey:
            continue
        assert 1 <= len(key) <= MAX_LENGTH
        assert key.isascii()
        assert key.isprintable()


@given(st.lists(st.sampled_from(list('"\\;=,: @?%()*aA1.-\t\x00é')), max_size=40).map("".join))
def test_R5_any_text_of_the_grammars_own_signs_is_a_key_or_invalid(field):
    for strict in (True, False):
        try:
            key = parse(field, strict=strict)
        except InvalidKey:
            continue
        assert key.isascii()
        assert key.isprintable()


def test_the_shared_vectors_are_no_part_of_the_project():
    assert not SHARED.is_relative_to(ROOT)
    assert not list(Path(ROOT / "tests").rglob("structured-fields-*.json"))
