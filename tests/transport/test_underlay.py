"""Networks under an endpoint: every EV has an address, and the protocol's parameters hold together."""

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from weft.core.errors import UsageError
from weft.mrc.rules.settings import settings
from weft.transport.sockets import held, open_socket, packed, refuse_small_mtu
from weft.transport.underlay import Loopback, SoftwareClocks, Srv6Underlay, software_spec


@given(st.integers(1, 16), st.integers(1, 8), st.integers(1, 65_535))
def test_a_plane_of_loopback_is_one_address(planes, paths, port):
    underlay = Loopback(planes=planes, paths=paths)
    addresses = [underlay.address({"port": port}, ev) for ev in range(planes * paths)]
    assert len(set(addresses)) == planes
    assert [underlay.address({"port": port}, ev)[0] for ev in range(paths)] == ["127.0.0.1"] * paths
    assert {port_ for _, port_ in addresses} == {port}


@given(st.integers(1, 8), st.integers(1, 16), st.integers(10, 50_000), st.integers(10, 50_000), st.booleans())
def test_software_parameters_are_accepted_by_the_protocol(planes, paths, spread, rtt, fixed):
    spec = software_spec(planes, paths, SoftwareClocks(spread, 2 * spread, rtt), ack_bytes=8192, fixed=fixed)
    params = settings(spec, planes=planes, rate_bps=10**9, payload=4096)[0]
    assert params["evs"] >= planes * paths
    assert params["spread_ps"] == spread * 10**6
    assert params["spread_max_ps"] == 16 * spread * 10**6
    assert params["base_rtt_ps"] == rtt * 10**6
    assert params["trimming"] == 0, "sockets have no switches that trim"


def test_the_carrier_of_an_ev_is_whatever_the_fabric_says():
    underlay = Srv6Underlay(
        planes=2, paths=3, rate_bps=10**9, carrier=lambda place, ev: f"fd00::{place['nic']}:{ev}", where={"nic": 4}
    )
    assert underlay.place(77) == {"nic": 4, "port": 77}
    assert underlay.address({"nic": 9, "port": 5}, 2) == ("fd00::9:2", 5, 0, 0)


def test_a_fabric_without_carriers_says_so():
    with pytest.raises(UsageError, match="which carrier leads to"):
        Srv6Underlay(planes=1, paths=1, rate_bps=1).address({"port": 1}, 0)


@pytest.mark.parametrize("window", [0, 1 << 20])
def test_a_window_that_is_set_replaces_congestion_control(window):
    spec = Srv6Underlay(planes=1, paths=2, rate_bps=10**9, window=window).spec
    assert spec.congestion.algorithm == ("fixed" if window else "nscc")


@given(st.ip_addresses(v=4), st.integers(0, 65_535))
def test_an_address_is_packed_as_the_kernel_has_it(address, port):
    data = packed(socket.AF_INET, (str(address), port))
    assert len(data) == 16
    assert int.from_bytes(data[:2], "little") == socket.AF_INET
    assert int.from_bytes(data[2:4], "big") == port
    assert data[4:8] == address.packed


@given(st.ip_addresses(v=6), st.integers(0, 65_535), st.integers(0, 2**32 - 1))
def test_an_ipv6_address_keeps_its_scope(address, port, scope):
    data = packed(socket.AF_INET6, (str(address), port, 0, scope))
    assert len(data) == 28
    assert int.from_bytes(data[:2], "little") == socket.AF_INET6
    assert data[8:24] == address.packed
    assert int.from_bytes(data[24:], "little") == scope


def test_a_socket_of_loopback_does_not_wait_and_has_room():
    with open_socket(Loopback(), 0) as sock:
        assert not sock.getblocking()
        assert held(sock) > 60 * 1024, "a full packet fits into its buffer"
        assert sock.getsockname()[1] > 0


def test_sockets_are_made_where_the_underlay_says():
    entered = []

    class Elsewhere(Loopback):
        @override
        def inside(self):
            entered.append(1)
            return super().inside()

    open_socket(Elsewhere(), 0).close()
    assert entered == [1]


@pytest.mark.parametrize(("payload", "fits"), [(1000, True), (60 * 1024, True), (65_500, False)])
def test_a_payload_that_a_link_cannot_carry_is_refused_before_anything_is_sent(payload, fits):
    underlay = Loopback(payload=payload)
    address = underlay.address({"port": 9}, 0)
    if fits:
        refuse_small_mtu(underlay, "rank 1", address)
    else:
        with pytest.raises(UsageError, match=f"a payload of {payload} needs"):
            refuse_small_mtu(underlay, "rank 1", address)
