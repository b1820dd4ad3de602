"""What `make services` finds, and what it says where it can install nothing."""

from __future__ import annotations

import pytest

from tests.services import MissingService, packages


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """`machine(name, …)`: a machine with no other programs; return the folder on its PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(packages, "SERVERS", ())
    monkeypatch.setattr(packages, "COMPILED", {})
    for each in packages.PROGRAMS:
        if each.variable is not None:
            monkeypatch.delenv(each.variable, raising=False)

    def machine(*names):
        for name in names:
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text("#!/bin/sh\n")
            (tmp_path / name).chmod(0o755)
        return tmp_path

    return machine


@pytest.mark.parametrize("each", packages.PROGRAMS, ids=lambda each: each.name)
def test_what_is_missing_is_an_error_with_the_command_that_installs_it(machine, each):
    with pytest.raises(MissingService, match=f"make services .* apt-get install {each.package}"):
        packages.find(each.name)


def test_a_program_is_found_on_path_where_debian_puts_it_or_by_its_variable(machine, monkeypatch):
    path = machine("pgbouncer", "sbin/postgres", "chromium", "another-chromium")
    monkeypatch.setattr(packages, "SERVERS", (str(path / "sbin"),))
    monkeypatch.setenv("IDEMPOTENCY_TEST_CHROMIUM", str(path / "another-chromium"))

    assert packages.find("pgbouncer") == path / "pgbouncer"
    assert packages.find("chromium") == path / "another-chromium"
    (path / "pgbouncer").rename(path / "sbin/pgbouncer")
    assert packages.find("pgbouncer") == path / "sbin/pgbouncer"


def test_a_variable_that_names_no_program_is_an_error_that_says_so(machine, monkeypatch):
    machine("chromium")
    monkeypatch.setenv("IDEMPOTENCY_TEST_CHROMIUM", "/not/there")

    with pytest.raises(MissingService, match="IDEMPOTENCY_TEST_CHROMIUM=/not/there"):
        packages.find("chromium")


def test_without_apt_get_it_says_what_is_missing_and_is_no_failure(machine, capsys):
    machine(*{each.name for each in packages.PROGRAMS} - {"chromium", "pgbouncer"})

    assert packages.main() == 0
    assert capsys.readouterr().out == (
        "Tests need what is not on this machine: chromium, pgbouncer\n"
        "On Debian: sudo apt-get install chromium pgbouncer\n"
    )

    machine("chromium", "pgbouncer")
    assert packages.main() == 0
    assert capsys.readouterr().out == ""
