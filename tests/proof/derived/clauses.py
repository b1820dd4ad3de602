"""What can be left out of a statement: of SQL, of DynamoDB's expressions, of a script in Lua."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

__all__ = ["Literal", "clauses"]

_STRING = re.compile(
    r"""#[^\n]*|[rbfu]*(?P<quote>\"{3}|'{3}|["'])(?P<content>(?:\\.|(?!(?P=quote)).)*)(?P=quote)""",
    re.DOTALL | re.IGNORECASE,
)
_TOKEN = re.compile(
    r"""(?P<comment>--[^\n]*)|'[^']*'|%\(\w+\)s|\{[A-Z]\w*\}|[#:]?[A-Za-z_][\w.]*"""
    r"""|<=|>=|<>|~=|==|\S"""
)
_IS_STATEMENT = re.compile(r"\b(SELECT|UPDATE|INSERT|DELETE|SET|AND|OR|REMOVE)\b|redis\.call|<>|=")
_BOUNDS = {
    *(
        "SELECT",
        "FROM",
        "LEFT",
        "CROSS",
        "JOIN",
        "ON",
        "WHERE",
        "GROUP",
        "HAVING",
        "ORDER",
        "LIMIT",
    ),
    *("FOR", "RETURNING", "UNION", "VALUES", "AS", "SET", "REMOVE", "WHEN", "THEN", "ELSE"),
    *(",", ";"),
}
_LUA_BOUNDS = {
    *("local", "function", "return", "if", "elseif", "then", "else", "end", "while", "for", "do"),
    *("=", ",", ";"),
}
_LUA_GOES_ON = re.compile(r"and|or|not|then|[=(,{+*/.<>~-]+|\.\.")
_NEGATED = {"==": "~=", "<=": ">", "<": ">="}
_NEGATED |= {new: old for old, new in _NEGATED.items()}

_Clause = tuple[str, int, str, str]


class Literal:
    """A string as the source has it: in one part, or in several that one pair of brackets holds."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.inside = bytearray(len(source))
        for match in _STRING.finditer(source):
            if match["quote"]:
                start, end = match.span("content")
                self.inside[start:end] = b"\1" * (end - start)
        #: As long as the source, with a space for what is not in the string.
        self.text = "".join(
            letter if inside or letter == "\n" else " "
            for letter, inside in zip(source, self.inside, strict=True)
        )

    def replaced(self, kind: str, start: int, end: int, new: str = "") -> _Clause:
        """Return the change of a part of the string; its quotes stay where they are."""
        old = self.source[start:end]
        kept = "".join(x for x, i in zip(old, self.inside[start:end], strict=True) if not i)
        return kind, start, old, new + kept


class _Token(NamedTuple):
    text: str
    start: int
    end: int
    #: How many brackets, and CASEs, are open around it.
    depth: int


def clauses(literal: Literal) -> Iterator[_Clause]:
    """Yield kind, place, old and new text of each change; none if it is no statement."""
    if not _IS_STATEMENT.search(literal.text):
        return
    if "redis." in literal.text:
        tokens = _with_ends(literal.text, _tokens(literal.text))
        yield from _terms(literal, tokens, "and", "or", _LUA_BOUNDS)
        yield from _script(literal, tokens)
    else:
        tokens = _tokens(literal.text)
        yield from _terms(literal, tokens, "AND", "OR", _BOUNDS)
        yield from _conditions(literal, tokens)
        yield from _assignments(literal, tokens)


def _tokens(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    depth = between = 0
    for match in _TOKEN.finditer(text):
        word = match[0]
        if match["comment"]:
            continue
        if word in (")", "]", "}", "END"):
            depth -= 1
        between += word == "BETWEEN"
        if word == "AND" and between:  # joins no terms
            word = "to"
            between -= 1
        tokens.append(_Token(word, match.start(), match.end(), depth))
        if word in ("(", "[", "{", "CASE"):
            depth += 1
    return tokens


def _with_ends(text: str, tokens: list[_Token]) -> list[_Token]:
    """Put a semicolon between lines where Lua has a new statement."""
    found: list[_Token] = []
    for token in tokens:
        if found and "\n" in text[found[-1].end : token.start]:
            before = _LUA_GOES_ON.fullmatch(found[-1].text)
            if not before and not re.fullmatch(r"and|or|then|[)}]", token.text):
                found.append(_Token(";", found[-1].end, found[-1].end, token.depth))
        found.append(token)
    return found


def _terms(
    literal: Literal, tokens: list[_Token], and_: str, or_: str, bounds: set[str]
) -> Iterator[_Clause]:
    """Leave out each of the terms of AND and OR."""
    for index, token in enumerate(tokens):
        if token.text not in (and_, or_):
            continue
        ends = bounds | {or_} | ({and_} if token.text == and_ else set())
        right = _reach(tokens, index, 1, ends)
        if _is_term(tokens[index + 1 : right + 1]):
            yield literal.replaced("term", token.start, tokens[right].end)
        left = _reach(tokens, index, -1, ends)
        # What follows the same word has been left out with that word.
        is_first = left == 0 or tokens[left - 1].text != token.text
        if is_first and _is_term(tokens[left:index]):
            yield literal.replaced("term", tokens[left].start, token.end)


def _reach(tokens: list[_Token], index: int, step: int, ends: set[str]) -> int:
    """Return the last token, from the one after `index` on, before an end or an outer bracket."""
    depth = tokens[index].depth
    while 0 <= index + step < len(tokens):
        token = tokens[index + step]
        if token.depth < depth or (token.depth == depth and token.text in ends):
            break
        index += step
    return index


def _opens(token: _Token) -> bool:
    return token.text in ("(", "[", "{", "CASE")


def _is_term(tokens: list[_Token]) -> bool:
    """Whether it can be left out, and is missed then."""
    return _is_whole(tokens) and [token.text for token in tokens] != ["TRUE"]


def _is_whole(tokens: list[_Token]) -> bool:
    """Whether there are tokens, and each bracket among them has its other one."""
    opened = sum(_opens(token) for token in tokens)
    return bool(tokens) and opened == sum(token.text in (")", "]", "}", "END") for token in tokens)


def _conditions(literal: Literal, tokens: list[_Token]) -> Iterator[_Clause]:
    """Leave out a condition that has one term, and each NOT."""
    for index, token in enumerate(tokens):
        before = tokens[index - 1].text if index else ""
        after = tokens[index + 1].text if index + 1 < len(tokens) else ""
        if token.text == "NOT" and after not in ("NULL", "MATERIALIZED") and before != "IF":
            yield literal.replaced("not", token.start, token.end)
        if token.text in ("WHERE", "HAVING", "ON") and after != "CONFLICT":
            new = "1 = 1"
        elif token.text == "WHEN" and before != "CASE":  # after a first one, or a value
            continue
        elif token.text == "WHEN":
            new = "1 = 0"
        else:
            continue
        end = _reach(tokens, index, 1, _BOUNDS)
        term = tokens[index + 1 : end + 1]
        joined = [t for t in term if t.depth == token.depth and t.text in ("AND", "OR")]
        if term and not joined and _is_whole(term):
            yield literal.replaced("term", term[0].start, term[-1].end, new)


def _assignments(literal: Literal, tokens: list[_Token]) -> Iterator[_Clause]:
    """Leave out each of the assignments after SET, and of the names after REMOVE."""
    for index, token in enumerate(tokens):
        if token.text not in ("SET", "REMOVE"):
            continue
        end = _reach(tokens, index, 1, {"WHERE", "FROM", "RETURNING", "REMOVE", ";"})
        commas = [
            place
            for place in range(index + 1, end + 1)
            if tokens[place].text == "," and tokens[place].depth == token.depth
        ]
        places = [index, *commas, end + 1]
        if not commas:
            if token.text == "REMOVE":
                yield literal.replaced("assignment", token.start, tokens[end].end)
            continue
        for first, last in pairwise(places):
            if last <= end:  # with the comma after it
                yield literal.replaced("assignment", tokens[first + 1].start, tokens[last].end)
            else:  # with the comma before it
                yield literal.replaced("assignment", tokens[first].start, tokens[end].end)


def _script(literal: Literal, tokens: list[_Token]) -> Iterator[_Clause]:
    """Negate each comparison of a script, and leave out each `not` and each write."""
    for index, token in enumerate(tokens):
        if token.text in _NEGATED:
            yield literal.replaced("negate", token.start, token.end, _NEGATED[token.text])
        elif token.text == "not":
            yield literal.replaced("not", token.start, token.end)
        elif token.text == "redis.call" and tokens[index - 1].text in (";", "then", "else", "do"):
            end = _reach(tokens, index, 1, {";"})
            yield literal.replaced("write", token.start, tokens[end].end)
