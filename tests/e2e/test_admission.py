"""Who may call what: every role against every call, by certificate, by token and by neither, at real daemons."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import grpc
import pytest

from kit.authority import Authority, put
from kit.guarded import ROLES, Guarded, methods, opened, refusal
from kit.plain import Plain
from kit.processes import Daemon, eventually
from warmshelfd.domain.roles import CALLS

CAN_BE_PROBED = {"grpc.health.v1.Health/Check", "grpc.health.v1.Health/Watch"}
NOT_OFFERED = "grpc.health.v1.Health/List"
LOOKS = {
    *("AliasService/ListAliases", "CapabilitiesService/GetCapabilities", "CapabilitiesService/GetCapacity"),
    *("CatalogService/GetArtifact", "CatalogService/ListArtifacts", "CatalogService/WatchArtifacts"),
    "ResidencyService/ListResidency",
}
READS = {
    *("LeaseService/OpenSession", "LeaseService/AcquireLease", "LeaseService/ReleaseLease"),
    *("TransferService/ReadLayout", "TransferService/ReadSegment", "TransferService/ReadTensors"),
}
REGISTERS = {
    *("CatalogService/RegisterArtifact", "CatalogService/RegisterArtifacts", "CatalogService/LoadArtifact"),
    *("AliasService/SetAlias", "AliasService/RollBackAlias", "AliasService/RemoveAlias"),
    *(f"PushService/{name}" for name in ("BeginPush", "WritePush", "FinishPush", "AbandonPush")),
}
OPERATES = {
    *("CatalogService/EvictArtifact", "CatalogService/RemoveArtifact", "CatalogService/VerifyArtifact"),
    *("LeaseService/ListLeases", "CapabilitiesService/SetBudget"),
}
GRANTED = {
    "reader": LOOKS | READS,
    "registrar": LOOKS | REGISTERS,
    "operator": LOOKS | READS | REGISTERS | OPERATES,
}
REFLECTS = "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
REFUSALS = {"UNAUTHENTICATED", "PERMISSION_DENIED"}
GET = "warmshelf.v1.CatalogService/GetArtifact"
EVICT = "warmshelf.v1.CatalogService/EvictArtifact"


def granted(role: str) -> set[str]:
    return {f"warmshelf.v1.{call}" for call in GRANTED[role]} | {REFLECTS} | CAN_BE_PROBED


def open_to(channel: grpc.Channel) -> set[str]:
    """Every call that is not refused."""
    with opened(channel):
        assert refusal(channel, NOT_OFFERED) == "UNIMPLEMENTED"
        return {call for call in CALLS if refusal(channel, call) not in REFUSALS}


@pytest.fixture(params=[True, False], ids=["certificates", "tokens"])
def guarded(request: pytest.FixtureRequest, daemon: Daemon) -> Guarded:
    return Guarded(daemon, by_certificate=request.param).start()


def test_every_call_that_there_is_has_a_row_and_no_other() -> None:
    assert set(CALLS) == set(methods()) - {NOT_OFFERED}


def test_each_role_opens_its_calls_and_no_other(guarded: Guarded) -> None:
    for role in ROLES:
        assert open_to(guarded.channel_of(role)) == granted(role), role


@pytest.mark.parametrize("roles", [(), ("reader",), ("registrar", "reader")])
def test_at_a_unix_socket_those_without_an_identity_have_the_roles_that_are_set(
    daemon: Daemon, roles: tuple[str, ...]
) -> None:
    config = daemon.root / "warmshelfd.toml"
    config.write_text(f"anonymous_roles = {json.dumps(roles)}\n")
    daemon.start("--config", str(config))
    expected = CAN_BE_PROBED.union(*(granted(role) for role in roles))
    assert open_to(grpc.insecure_channel(daemon.address)) == expected
    assert open_to(grpc.insecure_channel(daemon.tcp_address)) == expected


def test_over_tls_nobody_is_without_an_identity_but_a_probe(by_token: Guarded) -> None:
    by_token.start("--anonymous-roles", "operator")
    assert open_to(by_token.channel()) == CAN_BE_PROBED
    assert open_to(grpc.insecure_channel(by_token.daemon.address)) == granted("operator")


def test_a_token_that_is_nearly_right_is_wrong(by_token: Guarded) -> None:
    right = by_token.token("reader")
    by_token.start()
    for token in (right[:-1], right + "0", right[:-1] + "0", right.upper(), "x"):
        with opened(by_token.channel(token=token)) as channel:
            assert refusal(channel, GET) == "UNAUTHENTICATED", token


def test_what_is_no_single_bearer_token_is_nobody_even_where_nobody_needs_a_name(by_token: Guarded) -> None:
    """Else a caller whose token was mangled would be taken for an operator at the socket."""
    by_token.start("--anonymous-roles", "operator")
    right = by_token.token("reader")
    with opened(grpc.insecure_channel(by_token.daemon.address)) as channel:
        call = channel.unary_unary(f"/{EVICT}")
        for values in (
            [f"Basic {right}"], [right], ["Bearer "], [""], [f"Bearer {right}"] * 2, [f"Bearer {right}", "Bearer x"]
        ):  # fmt: skip
            with pytest.raises(grpc.RpcError) as caught:
                call(b"", metadata=[("authorization", value) for value in values])
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED, values


def test_a_token_names_its_identity_at_a_unix_socket_too(by_token: Guarded) -> None:
    by_token.start("--anonymous-roles", "reader")
    with opened(grpc.insecure_channel(by_token.daemon.address)) as channel:
        call = channel.unary_unary("/warmshelf.v1.LeaseService/ListLeases")
        with pytest.raises(grpc.RpcError):
            call(b"")
        call(b"", metadata=[("authorization", f"Bearer {by_token.token('operator')}")])


def test_a_token_over_plain_tcp_is_refused_because_others_may_have_read_it(daemon: Daemon) -> None:
    (daemon.root / "t").write_text("a-token-of-somebody")
    (daemon.root / "c.toml").write_text(f'[[identity]]\nname="x"\ntoken="file:{daemon.root}/t"\nroles=["operator"]\n')
    daemon.start("--config", str(daemon.root / "c.toml"))
    with opened(grpc.insecure_channel(daemon.tcp_address)) as channel, pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(f"/{GET}")(b"", metadata=[("authorization", "Bearer a-token-of-somebody")])
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert "TLS" in str(caught.value.details())


def test_a_token_whose_file_changes_is_the_new_one_and_one_whose_file_goes_admits_nobody(by_token: Guarded) -> None:
    """Z4. What a token opened goes on; new calls need the new one."""
    by_token.start()
    path, old, new = by_token.token_file("reader"), by_token.token("reader"), "another-token-of-the-reader"
    with opened(by_token.channel(token=old)) as first, opened(by_token.channel(token=new)) as second:
        session = first.unary_stream("/warmshelf.v1.LeaseService/OpenSession")(b"")
        next(session)
        put(path, new.encode())
        eventually(lambda: refusal(first, GET) == "UNAUTHENTICATED", "the old token is nobody's")
        assert refusal(second, GET) == "ARTIFACT_NOT_FOUND"
        path.unlink()
        eventually(lambda: refusal(second, GET) == "UNAUTHENTICATED", "no token is the reader's")
        put(path, b"short")
        assert refusal(second, EVICT) == "UNAUTHENTICATED"
        put(path, old.encode())
        eventually(lambda: refusal(first, GET) == "ARTIFACT_NOT_FOUND", "the old token is right again")
        assert session.is_active()
    assert "cannot be read" in by_token.daemon.log.read_text()


def test_names_of_certificates_are_found_by_their_kind_and_the_first_row_that_fits_counts(
    by_certificate: Guarded,
) -> None:
    rows = [("uri:spiffe://cluster/bob", "operator"), ("cn:bob", "registrar"), ("dns:Bob.Example", "reader")]
    text = "\n".join(f'[[identity]]\nname="i{i}"\nsubject="{s}"\nroles=["{r}"]' for i, (s, r) in enumerate(rows))
    by_certificate.start(more=text)
    issue = by_certificate.authority.issue
    load, acquire = "warmshelf.v1.CatalogService/LoadArtifact", "warmshelf.v1.LeaseService/AcquireLease"
    for pair, opens in (
        (issue("bob"), {load}),
        (issue("x", dns=["bob.example"]), {acquire}),
        (issue("x", uri=["spiffe://cluster/bob"]), {load, acquire}),
        (issue("bob", dns=["bob.example"]), {load}),
        (issue("spiffe://cluster/bob", dns=["bob"], uri=["bob", "cn:bob"]), set()),
        (issue("bobby", dns=["x.bob.example"], uri=["spiffe://cluster/bob/x"]), set()),
    ):
        with opened(by_certificate.channel(pair)) as channel:
            assert {call for call in (load, acquire) if refusal(channel, call) != "PERMISSION_DENIED"} == opens


def test_a_certificate_that_is_no_identitys_opens_nothing_until_a_row_is_for_all(by_certificate: Guarded) -> None:
    stranger = by_certificate.authority.issue("stranger")
    by_certificate.start()
    assert open_to(by_certificate.channel(stranger)) == CAN_BE_PROBED
    by_certificate.daemon.kill()
    by_certificate.start(more='[[identity]]\nname="all"\nsubject="*"\nroles=["registrar"]')
    assert open_to(by_certificate.channel(stranger)) == granted("registrar")
    assert open_to(by_certificate.channel_of("reader")) == granted("reader")


def test_a_token_beside_a_certificate_decides(by_certificate: Guarded) -> None:
    more = '[[identity]]\nname="by-token"\ntoken="env:A_TOKEN"\nroles=["registrar"]'
    by_certificate.start(more=more, env={"A_TOKEN": "sixteen-letters-and-more"})
    reader = by_certificate.pair("reader")
    assert open_to(by_certificate.channel(reader, "sixteen-letters-and-more")) == granted("registrar")
    assert open_to(by_certificate.channel(reader, "sixteen-letters-or-others")) == CAN_BE_PROBED


def test_without_a_right_certificate_nobody_gets_to_the_first_byte(by_certificate: Guarded) -> None:
    by_certificate.start()
    forged = Authority().issue("someone", uri=["spiffe://cluster/operator"])
    late, early = (
        by_certificate.authority.issue("x", uri=["spiffe://cluster/reader"], shift_days=days) for days in (-5, 5)
    )
    check = "grpc.health.v1.Health/Check"
    for channel in (
        by_certificate.channel(),
        by_certificate.channel(forged),
        by_certificate.channel(late),
        by_certificate.channel(early),
        grpc.insecure_channel(by_certificate.daemon.tcp_address),
    ):
        with opened(channel):
            assert refusal(channel, check) == "UNAVAILABLE"
    with opened(by_certificate.channel_of("reader")) as channel:
        assert refusal(channel, check) == ""


def test_a_caller_learns_who_it_is_and_what_it_lacks_and_the_log_who_called(by_token: Guarded) -> None:
    by_token.start()
    with opened(by_token.channel(token=by_token.token("reader"))) as channel:
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary(f"/{EVICT}")(b"")
        assert refusal(channel, GET) == "ARTIFACT_NOT_FOUND"
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert re.search("the-reader has reader; .*EvictArtifact takes operator", str(caught.value.details()))

    def lines() -> list[dict[str, object]]:
        text = by_token.daemon.log.read_text().splitlines()
        return [json.loads(line) for line in text if '"call"' in line]

    eventually(lambda: len(lines()) == 2, "both calls are logged")
    assert [(line.get("identity"), line.get("reason")) for line in lines()] == [
        ("the-reader", "PERMISSION_DENIED"), ("the-reader", "ARTIFACT_NOT_FOUND")
    ]  # fmt: skip


def test_no_token_is_in_any_line_or_error(by_token: Guarded) -> None:
    """G13."""
    by_token.start()
    wrong = "wrong-canary-0123456789"
    for token in (wrong, *(by_token.token(role) for role in ROLES)):
        with opened(by_token.channel(token=token)) as channel:
            with pytest.raises(grpc.RpcError) as caught:
                channel.unary_unary(f"/{EVICT}")(b"")
            assert token not in repr(caught.value)
            assert token not in str(caught.value.trailing_metadata())
    by_token.token_file("reader").write_text("short-canary")
    eventually(lambda: "the-reader" in by_token.daemon.log.read_text(), "the bad token is told")
    text = by_token.daemon.log.read_text()
    assert not [secret for secret in (wrong, "canary", *map(by_token.token, ROLES)) if secret in text]


def test_a_daemon_listens_where_it_was_told_and_nowhere_else(by_token: Guarded) -> None:
    """T1, asked of the kernel."""
    by_token.start()
    proc = Path(f"/proc/{by_token.daemon.pid}")
    inodes = {os.readlink(link)[8:-1] for link in (proc / "fd").iterdir() if os.readlink(link).startswith("socket:[")}
    rows = [row.split() for name in ("tcp", "tcp6") for row in (proc / "net" / name).read_text().splitlines()[1:]]
    listening = [row[1] for row in rows if row[3] == "0A" and row[9] in inodes]
    port = int(by_token.daemon.tcp_address.rpartition(":")[2])
    assert [address[-13:] for address in listening] == [f"0100007F:{port:04X}"]  # of IPv6 it is the mapped form


def test_a_plain_daemon_on_loopback_serves_as_ever(running: Daemon) -> None:
    with Plain(running.tcp_address) as plain:
        assert plain.health_of() == "SERVING"
