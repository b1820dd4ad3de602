"""German has every text of the package, and its catalogue is compiled of its source."""

from __future__ import annotations

import ast
import gettext
import re
from collections.abc import Iterator
from pathlib import Path

from django.utils.translation.template import templatize

import django_idempotency

PACKAGE = Path(django_idempotency.__file__).parent
CATALOGUE = PACKAGE / "locale/de/LC_MESSAGES"
#: Context, text, plural and translation, as they are written in the source.
ENTRY = r"(?m)^(?:msgctxt (.*)\n)?msgid (.*)\n(?:msgid_plural (.*)\n)?msgstr(?:\[0\])? (.*)$"
#: A call of gettext, as Django makes it of a tag in a template.
CALL = r"""n?p?gettext\((?:u(?:"[^"]*"|'[^']*')(?:, ?)?)+(?:count)?\)"""
#: They are the same in German.
ALIKE = ("Status", "in %s")
#: Django's own catalogue has it.
OF_DJANGO = {("", "Home")}


def translated() -> dict[tuple[str, str], str]:
    """Return the translation of each text in each context; plurals stand under the singular."""
    entries = re.findall(ENTRY, (CATALOGUE / "django.po").read_text())[1:]
    read = [[ast.literal_eval(text or '""') for text in entry] for entry in entries]
    return {(context, text): said for context, text, _, said in read}


def calls(source: str, name: str) -> Iterator[list[str]]:
    """Yield the texts with which a function whose name fits is called."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and re.fullmatch(name, getattr(node.func, "id", "")):
            yield [it.value for it in node.args if isinstance(it, ast.Constant)]


def marked(source: str) -> set[tuple[str, str]]:
    """Return the context and the text of each call of gettext."""
    plain = [("", *texts) for texts in calls(source, "_|n?gettext(_lazy)?") if texts]
    return {tuple(texts[:2]) for texts in (*plain, *calls(source, "n?pgettext(_lazy)?"))}


def test_R78_german_has_every_text():
    sources = [it.read_text() for it in PACKAGE.rglob("*.py")]
    templates = [templatize(it.read_text()) for it in PACKAGE.rglob("*.html")]
    sources += ["\n".join(re.findall(CALL, template)) for template in templates]
    wanted, german = set().union(*map(marked, sources)), translated()

    assert len(wanted) > 100
    assert wanted - german.keys() == OF_DJANGO
    assert [text for (_, text), said in german.items() if said in ("", text)] == [*ALIKE]


def test_R78_german_has_every_reason_of_an_invalid_key():
    """`InvalidKey` translates them."""
    modules = (PACKAGE / name for name in ("keys.py", "http/key.py"))
    texts = [texts for it in modules for texts in calls(it.read_text(), "InvalidKey")]
    found = {("", *given) for given in texts if given}  # a key that is no str comes over no wire

    assert len(found) == 8
    assert found <= translated().keys()


def test_R78_german_is_compiled_of_its_source():
    with (CATALOGUE / "django.mo").open("rb") as compiled:
        german = gettext.GNUTranslations(compiled)
    for (context, text), said in translated().items():
        # A text that has a plural is found as such, and each other one as one that has none.
        if context:
            found = {german.pgettext(context, text), german.npgettext(context, text, text, 1)}
        else:
            found = {german.gettext(text), german.ngettext(text, text, 1)}
        assert found <= {said, text}, text
        assert said in found, text
