# SPDX-License-Identifier: Apache-2.0
"""The fabric key and the secrets of ranks that are derived from it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from netfold.controller.jobs import fabric_key
from netfold.fabric import generate
from netfold.fabric.graph import Fabric, FabricError
from netfold.wire.jobs import Watch
from netfold.wire.plan import Secret


@pytest.fixture
def fabric(tmp_path: Path) -> Fabric:
    """A fabric whose key is in a file of the test's own."""
    made = generate.parse("leafspine,2,2,2")
    return msgspec.structs.replace(made, fabric_key_file=str(tmp_path / "keys" / "fabric.key"))


def test_the_key_is_made_once_and_for_its_owner_alone(fabric: Fabric) -> None:
    """The first start makes it, with mode 0600; the next one reads the same."""
    key = fabric_key.load(fabric)
    path = fabric_key.place(fabric)
    assert len(key) == 32
    assert fabric_key.load(fabric) == key
    assert path.stat().st_mode & 0o777 == 0o600
    assert [file.name for file in path.parent.iterdir()] == ["fabric.key"]


def test_the_key_has_a_default_place_by_the_fabrics_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
                                                         fabric: Fabric) -> None:
    """It is below XDG_STATE_HOME."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    plain = msgspec.structs.replace(fabric, fabric_key_file=None, name="lab")
    fabric_key.load(plain)
    assert (tmp_path / "state/netfold/lab.key").is_file()


@pytest.mark.parametrize(("mode", "content", "message"), [
    (0o640, b"k" * 32, "expected mode 0600, got 0640"),
    (0o602, b"k" * 32, "expected mode 0600, got 0602"),
    (0o600, b"k" * 31, "expected 32 bytes, got 31"),
    (0o600, b"k" * 33, "expected 32 bytes, got more"),
])
def test_a_key_that_others_may_know_or_that_is_none_is_refused(
    fabric: Fabric, mode: int, content: bytes, message: str
) -> None:
    """The message names setting, file, what was expected and what to do."""
    path = fabric_key.place(fabric)
    path.parent.mkdir()
    path.write_bytes(content)
    path.chmod(mode)
    with pytest.raises(FabricError, match=f"fabric_key_file: {path}: {message}.* Remove it"):
        fabric_key.load(fabric)


def test_secrets_of_ranks_differ_by_all_that_names_the_rank() -> None:
    """Key, tenant, job, epoch and rank all count."""
    key = b"k" * 32
    who = [(key, "t", "j", 1, 0), (key, "t", "j", 1, 1), (key, "t", "j", 2, 0), (key, "t", "i", 1, 0),
           (key, "s", "j", 1, 0), (b"l" * 32, "t", "j", 1, 0)]
    assert len({fabric_key.rank_secret(*one).value for one in who}) == len(who)
    assert fabric_key.rank_secret(*who[0]) == fabric_key.rank_secret(*who[0])


def test_a_secret_shows_in_no_representation() -> None:
    """Neither repr() of a message nor that of its fields has it; only the encoded message does."""
    request = Watch("j", 0, 1, Secret("c0ffee"))
    assert "c0ffee" not in f"{request!r} {request} {request.secret.__rich_repr__()}"
    assert msgspec.json.decode(msgspec.json.encode(request), type=Watch).secret.matches(Secret("c0ffee"))


def test_an_empty_secret_matches_nothing() -> None:
    """A rank without a secret is no rank, whatever the controller expects."""
    assert not Secret().matches(Secret())
    assert not Secret("a").matches(Secret())
    assert not Secret().matches(Secret("a"))
    assert Secret("a").matches(Secret("a"))
    assert not Secret("a").matches(Secret("ä"))
