"""What `make services` finds, and what it says where it can install nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.services import MissingService, packages


@pytest.fixture
def bare_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without any program; return a folder on its PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(packages, "SERVERS", ())
    for program in packages.PROGRAMS:
        if program.variable is not None:
            monkeypatch.delenv(program.variable, raising=False)
    return tmp_path


def program(path: Path) -> Path:
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


@pytest.mark.usefixtures("bare_machine")
@pytest.mark.parametrize("each", packages.PROGRAMS, ids=lambda each: each.name)
def test_what_is_missing_is_an_error_with_the_command_that_installs_it(
    each: packages.Program,
) -> None:
    with pytest.raises(MissingService, match=f"make services .* apt-get install {each.package}"):
        packages.find(each.name)


def test_a_program_on_path_is_found(bare_machine: Path) -> None:
    found = program(bare_machine / "pgbouncer")

    assert packages.find("pgbouncer") == found


def test_a_server_is_found_where_debian_puts_it(
    bare_machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sbin = tmp_path / "sbin"
    sbin.mkdir()
    monkeypatch.setattr(packages, "SERVERS", (str(sbin),))
    found = program(sbin / "pgbouncer")

    assert packages.find("pgbouncer") == found


def test_the_variable_comes_first(
    bare_machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(bare_machine / "chromium")
    other = program(tmp_path / "another-chromium")
    monkeypatch.setenv("IDEMPOTENCY_TEST_CHROMIUM", str(other))

    assert packages.find("chromium") == other


def test_a_variable_that_names_no_program_is_an_error_that_says_so(
    bare_machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(bare_machine / "chromium")
    monkeypatch.setenv("IDEMPOTENCY_TEST_CHROMIUM", "/not/there")

    with pytest.raises(MissingService, match="IDEMPOTENCY_TEST_CHROMIUM=/not/there"):
        packages.find("chromium")


def test_without_apt_get_it_says_what_is_missing_and_is_no_failure(
    bare_machine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(packages, "COMPILED", {})
    for each in packages.PROGRAMS:
        if each.name not in ("chromium", "pgbouncer"):
            program(bare_machine / each.name)

    assert packages.main() == 0

    assert capsys.readouterr().out == (
        "Tests need what is not on this machine: chromium, pgbouncer\n"
        "On Debian: sudo apt-get install chromium pgbouncer\n"
    )


def test_where_all_is_there_it_says_nothing(
    bare_machine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(packages, "COMPILED", {"json": "group"})
    for each in packages.PROGRAMS:
        program(bare_machine / each.name)

    assert packages.main() == 0

    assert capsys.readouterr().out == ""
