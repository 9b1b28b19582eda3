# SPDX-License-Identifier: MIT
"""zc-msg: every variant and way to wait, what --verify sees, and how each failure is told."""
import json
import signal
import socket

import pytest

import ends
from ends import LIBRARY, PATHS, Proxy, Server, check_cpu, check_latency, check_report, msg, result

VARIANTS = ["flat", "fields", "iovec", "zerocopy"]
WAITS = ["blocking", "poll", "epoll"]


@pytest.fixture(scope="module")
def server():
    with Server("zc-msg") as one:
        yield one
        status, _, err = one.terminate()
        assert status == 0 and "verification" not in err


@pytest.mark.parametrize("wait", WAITS)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("verify", [[], ["--verify"]], ids=["plain", "verify"])
def test_every_variant_waits_every_way(server, variant, wait, verify):
    got = result(
        msg(server.port, "--threads", 2, "--messages", 30, "--warmup", 5, "--wait", wait, "--nodelay", "--json", "-",
            *verify, variant=variant, size=3000)
    )
    check_report(got, "variant", tool="zc-msg", role="client", variant=variant, threads=2, messages=60,
                 bytes_per_message=24000, latency_of="round_trip", verified=True if verify else None)
    assert got["parameters"]["wait"] == wait and got["parameters"]["field-bytes"] == 3000
    assert got["peer_latency_of"] == "send_call"
    check_latency(got["peer_latency_us"])
    assert got["peer_zerocopy_sends"] == 0 if variant != "zerocopy" else got["peer_zerocopy_sends"] >= 60


@pytest.mark.parametrize("size", [1, 7, 8, 4097, "64K", "1M"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_sizes(server, variant, size):
    got = result(msg(server.port, "--messages", 4, "--warmup", 1, "--verify", "--nodelay", "--json", "-",
                     variant=variant, size=size))
    number = {"64K": 65536, "1M": 1048576}.get(size, size)
    check_report(got, "variant", messages=4, bytes_per_message=8 * number, verified=True)


def test_receiving_field_by_field(server):
    got = result(msg(server.port, "--receive", "fields", "--messages", 20, "--verify", "--json", "-"))
    assert got["reads"] >= 160 and got["verified"] is True


def test_time_ends_a_run(server):
    got = result(msg(server.port, "--seconds", 0.2, "--warmup", 0, "--json", "-"))
    assert got["messages"] >= 1 and got["seconds"] >= 0.2


def test_printed_without_json(server):
    done = msg(server.port, "--messages", 3, "--verify")
    assert done.returncode == 0 and not done.stderr
    for word in ["flat", "Gbit/s", "round_trip", "every byte verified"]:
        assert word in done.stdout


def test_socket_buffer_is_set(server):
    got = result(msg(server.port, "--messages", 5, "--socket-buffer", "8K", "--verify", "--json", "-", size="64K"))
    assert got["parameters"]["socket-buffer"] == 8192


def test_host_name_is_found(server):
    done = ends.client("zc-msg", ["client", "--host=localhost", f"--port={server.port}", "--variant=iovec",
                                  "--field-bytes=1K", "--messages=2"])
    assert done.returncode == 0, done.stderr


# The server ------------------------------------------------------------------------------------------------------------


def test_server_ends_after_its_sessions_and_writes_json(tmp_path):
    file = tmp_path / "server.json"
    with Server("zc-msg", "--sessions", 2, "--json", file) as server:
        for variant in ["flat", "iovec"]:
            assert msg(server.port, "--messages", 9, "--threads", 2, "--verify", variant=variant).returncode == 0
        assert server.end()[0] == 0
    report = json.loads(file.read_text())
    assert (report["tool"], report["role"]) == ("zc-msg", "server")
    assert [session["variant"] for session in report["sessions"]] == ["flat", "iovec"]
    for session in report["sessions"]:
        check_report(session, "variant", tool="zc-msg", role="server", messages=18, latency_of="send_call", verified=True)
    assert ends.leftovers(tmp_path) == ["server.json"]


def test_server_json_on_standard_output():
    with Server("zc-msg", "--sessions", 1, "--json", "-") as server:
        assert msg(server.port, "--messages", 1).returncode == 0
        status, out, _ = server.end()
    assert status == 0 and len(json.loads(out)["sessions"]) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_the_server_cleanly(number, tmp_path):
    file = tmp_path / "server.json"
    with Server("zc-msg", "--json", file) as server:
        assert msg(server.port, "--messages", 1).returncode == 0
        status, _, err = server.terminate(number)
    assert (status, err) == (0, "")
    assert len(json.loads(file.read_text())["sessions"]) == 1


def test_signal_ends_a_server_with_clients():
    with Server("zc-msg") as server, socket.create_connection(("127.0.0.1", server.port)) as idle:
        process = ends.start_client("zc-msg", ["client", "--host", "127.0.0.1", "--port", server.port, "--variant", "flat",
                                               "--field-bytes", 1000, "--seconds", 600, "--warmup", 0])
        # The idle connection is accepted first; a hello over it shows that the server is at work.
        idle.sendall(ends.frame(ends.DATA, {"session": 1, "connection": 0}))
        assert ends.receive_frame(idle)[2] == ends.REFUSED
        status, _, _ = server.terminate()
        out, err = process.communicate(timeout=ends.LIMIT)
    assert status == 0
    assert process.returncode == 1 and not out
    assert "zc-msg: " in err


def test_no_more_sessions_than_were_asked_for():
    with Server("zc-msg", "--sessions", 1) as server:
        with socket.create_connection(("127.0.0.1", server.port)) as first:
            first.sendall(ends.frame(ends.HELLO, {"tool": "zc-msg", "options": hello_options()}))
            assert ends.receive_frame(first)[2] == 2
            done = msg(server.port, "--messages", 1)
            assert done.returncode == 1 and "--sessions" in done.stderr
        status, _, err = server.end()
    assert status == 1 and "went away" in err


# Wrong bytes and broken connections -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("message, offset", [(0, 0), (7, 4321), (12, 7999)])
def test_flipped_byte_is_found(server, variant, message, offset):
    with Proxy(server.port, ends.flip_at(message * 8000 + offset, to_server=False)) as proxy:
        done = msg(proxy.port, "--messages", 10, "--warmup", 5, "--verify", "--json", "-", variant=variant)
    assert done.returncode == 1
    assert f"message {message}, first wrong byte at offset {offset}:" in done.stderr
    assert json.loads(done.stdout)["verified"] is False


def test_flipped_byte_passes_unasked(server):
    with Proxy(server.port, ends.flip_at(4321, to_server=False)) as proxy:
        assert result(msg(proxy.port, "--messages", 10, "--json", "-"))["verified"] is None


def test_swapped_words_are_found(server):
    def swap(to_server, position, chunk):
        if to_server or position:
            return chunk
        return chunk[8:16] + chunk[:8] + chunk[16:]

    with Proxy(server.port, swap) as proxy:
        done = msg(proxy.port, "--messages", 3, "--warmup", 0, "--verify")
    assert done.returncode == 1 and "message 0, first wrong byte at offset 0:" in done.stderr


def test_repeated_message_is_found(server):
    kept = []

    def repeat(to_server, position, chunk):
        if to_server:
            return chunk
        kept.append(chunk)
        return kept[0][position % 8 :][: len(chunk)] if position == len(kept[0]) == len(chunk) else chunk

    with Proxy(server.port, repeat) as proxy:
        done = msg(proxy.port, "--messages", 3, "--warmup", 0, "--verify", size=16)
    assert done.returncode == 1 and "message 1, first wrong byte at offset 0:" in done.stderr


def test_peer_that_closes_in_mid_message_is_told_with_the_position(server):
    with Proxy(server.port, ends.cut_at(3 * 8000 + 4444, to_server=False)) as proxy:
        done = msg(proxy.port, "--messages", 100, "--warmup", 0, "--json", "-")
    assert done.returncode == 1 and not done.stdout
    assert "the peer closed in mid-message: 4444 of 8000 bytes of message 3 received" in done.stderr


def test_client_that_closes_in_mid_request_fails_the_session():
    with Server("zc-msg", "--sessions", 1) as server:
        with Proxy(server.port, ends.cut_at(2 * 64 + 10, to_server=True)) as proxy:
            assert msg(proxy.port, "--messages", 100, "--warmup", 0).returncode == 1
        status, _, err = server.end()
    assert status == 1
    assert "10 of 64 bytes of message 2 received" in err or "gave its session up" in err


def start_endless(port, threads=2):
    """A client that goes on until it is stopped."""
    return ends.start_client("zc-msg", ["client", "--host", "127.0.0.1", "--port", port, "--variant", "fields",
                                        "--field-bytes", "256K", "--seconds", 600, "--warmup", 1, "--nodelay",
                                        "--threads", threads])


def test_killed_server_is_told():
    ends.check_killed_server("zc-msg", start_endless)


def test_killed_client_fails_its_session_and_the_server_goes_on(tmp_path):
    file = tmp_path / "server.json"
    with Server("zc-msg", "--sessions", 2, "--json", file) as server:
        ends.check_killed_client(server, start_endless, lambda: msg(server.port, "--messages", 5, "--verify"))
    assert len(json.loads(file.read_text())["sessions"]) == 1


def test_standstill_is_noticed(server):
    with Proxy(server.port, lambda to_server, position, chunk: chunk if to_server else b"") as proxy:
        done = msg(proxy.port, "--messages", 10, "--timeout", 1)
    assert done.returncode == 1 and "nothing has moved for 1 s (--timeout), after 0 messages" in done.stderr


def test_server_that_says_nothing_is_noticed():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        done = msg(silent.getsockname()[1], "--messages", 1, "--timeout", 1)
    assert done.returncode == 1 and "the server did not answer within 1 s (--timeout)" in done.stderr


# Arguments ---------------------------------------------------------------------------------------------------------------

GOOD = ["client", "--host", "127.0.0.1", "--port", "1", "--variant", "flat", "--field-bytes", "100"]


@pytest.mark.parametrize(
    "arguments, named",
    [
        ([], ["server or client"]),
        (["nonsense"], ["server or client"]),
        (["client", "--port", "1"], ["--host", "missing"]),
        (["server"], ["--port", "missing"]),
        ([*GOOD, "--variant", "fast"], ["--variant", "fast", "flat|fields|iovec|zerocopy"]),
        ([*GOOD, "--variant", "flat|fields"], ["--variant", "flat|fields|iovec|zerocopy"]),
        ([*GOOD, "--field-bytes", "0"], ["--field-bytes 0:", "from 1"]),
        ([*GOOD, "--field-bytes", "17G"], ["--field-bytes 17G:", "17179869184"]),
        ([*GOOD, "--field-bytes", "16G", "--threads", "4096"], ["--field-bytes 17179869184", "memory", "allowed is up to"]),
        ([*GOOD, "--field-bytes", "99999999999999999999"], ["--field-bytes", "allowed"]),
        ([*GOOD, "--field-bytes", "18014398509481985K"], ["--field-bytes", "allowed"]),
        ([*GOOD, "--field-bytes", "1KB"], ["--field-bytes 1KB", "allowed"]),
        ([*GOOD, "--field-bytes", "-1"], ["--field-bytes -1", "allowed"]),
        ([*GOOD, "--field-bytes", ""], ["--field-bytes ''", "allowed"]),
        ([*GOOD, "--threads", "0"], ["--threads 0", "from 1 to 4096"]),
        ([*GOOD, "--seconds", "nan"], ["--seconds nan", "allowed"]),
        ([*GOOD, "--seconds", "0"], ["--seconds 0", "allowed"]),
        ([*GOOD, "--seconds", "1", "--messages", "1"], ["--messages", "--seconds"]),
        ([*GOOD, "--port", "65536"], ["--port 65536", "65535"]),
        ([*GOOD, "--port", "0"], ["--port 0", "from 1"]),
        ([*GOOD, "--wait", "forever"], ["--wait forever", "blocking|poll|epoll"]),
        ([*GOOD, "--verify=yes"], ["--verify yes", "no value"]),
        ([*GOOD, "--bind", "::1"], ["--bind", "server only"]),
        ([*GOOD, "--json"], ["--json", "without a value"]),
        ([*GOOD, "--json", ""], ["--json", "not empty"]),
        ([*GOOD, "--nonsense"], ["--nonsense"]),
        ([*GOOD, "-x"], ["-x"]),
        ([*GOOD, "extra"], ["extra"]),
        (["server", "--port", "0", "--verify"], ["--verify", "client only"]),
        (["server", "--port", "0", "--sessions", "x"], ["--sessions x", "allowed"]),
    ],
)
def test_usage_errors(arguments, named):
    ends.check_usage_error("zc-msg", arguments, named)


def test_help_names_every_option():
    ends.check_help("zc-msg", ["host", "port", "variant", "field-bytes", "threads", "messages", "seconds", "verify", "json",
                               "bind", "sessions", "wait", "nodelay", "warmup", "timeout", "socket-buffer", "receive"])
    assert ends.client("zc-msg", ["client", "--help"]).stdout == ends.client("zc-msg", ["--help"]).stdout


def test_port_in_use(server):
    done = ends.client("zc-msg", ["server", "--bind", "127.0.0.1", "--port", server.port])
    assert done.returncode == 1 and str(server.port) in done.stderr and "in use" in done.stderr


def test_nobody_listens():
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        done = msg(reserved.getsockname()[1], "--messages", 1)
    assert done.returncode == 1 and "refused" in done.stderr and "127.0.0.1" in done.stderr


@pytest.mark.parametrize("host", ["no-such-host.invalid", "300.1.1.1", "255.255.255.255"])
def test_unreachable_host(host):
    done = ends.client("zc-msg", ["client", "--host", host, "--port", 1, "--variant", "flat", "--field-bytes", 1])
    assert done.returncode == 1 and host in done.stderr


def test_json_that_cannot_be_written_is_refused_before_anything_runs(server, tmp_path):
    absent = tmp_path / "absent" / "file.json"
    done = msg(server.port, "--messages", 1, "--json", absent)
    assert done.returncode == 1 and str(absent) in done.stderr and "--json" in done.stderr
    done = ends.client("zc-msg", ["server", "--port", 0, "--json", absent])
    assert done.returncode == 1 and str(absent) in done.stderr and not done.stdout


def test_json_file_is_whole_or_absent(server, tmp_path):
    file = tmp_path / "client.json"
    assert msg(server.port, "--messages", 1, "--json", file).returncode == 0
    check_report(json.loads(file.read_text()), "variant")
    assert msg(1, "--messages", 1, "--json", tmp_path / "none.json").returncode == 1
    assert ends.leftovers(tmp_path) == ["client.json"]


def test_full_disk_is_a_failure(server):
    done = msg(server.port, "--messages", 1, "--json", "/dev/full")
    assert done.returncode == 1 and "No space left" in done.stderr and "/dev/full" in done.stderr


# Strangers ------------------------------------------------------------------------------------------------------------------


def hello_options(**changed):
    options = {"verify": False, "wait": "blocking", "nodelay": False, "socket-buffer": 0, "warmup": 0, "variant": "flat",
               "field-bytes": 100, "threads": 1, "receive": "message"}
    return options | changed


def said_to(server, data):
    """What the server answers to the first bytes of a connection: a frame, or None when it closes."""
    with socket.create_connection(("127.0.0.1", server.port)) as sock:
        sock.sendall(data)
        return ends.receive_frame(sock)


@pytest.mark.parametrize(
    "data, why",
    [
        (ends.frame(ends.HELLO, {}, protocol=2), "speaks version 2 of the tools' protocol, this end version 1"),
        (ends.frame(ends.HELLO, {}, magic=1), "no tool of zc"),
        (b"GET / HTTP/1.1\r\n\r\n", "no tool of zc"),
        (ends.HEADER.pack(ends.MAGIC, 1, 1, 1 << 30), "malformed frame"),
        (ends.HEADER.pack(ends.MAGIC, 1, 99, 0), "malformed frame"),
        (ends.HEADER.pack(ends.MAGIC, 1, 1, 2) + b"[]", "no JSON object"),
        (ends.HEADER.pack(ends.MAGIC, 1, 1, 3) + b"{{{", "no JSON object"),
        (ends.frame(4, {}), "begins with a hello"),
        (ends.frame(ends.HELLO, {"tool": "zc-ttcp", "options": {}}), "this is a server of zc-msg, the client is zc-ttcp"),
        (ends.frame(ends.HELLO, {"tool": 5}), "unknown"),
        (ends.frame(ends.HELLO, {"tool": "zc-msg"}), "lacks --"),
        (ends.frame(ends.HELLO, {"tool": "zc-msg", "options": hello_options(variant="fast")}), "--variant fast"),
        (ends.frame(ends.HELLO, {"tool": "zc-msg", "options": hello_options(verify="yes")}), "--verify yes"),
        (ends.frame(ends.HELLO, {"tool": "zc-msg", "options": hello_options(threads=-5)}), "--threads -5"),
        (ends.frame(ends.HELLO, {"tool": "zc-msg", "options": hello_options(threads=[])}), "--threads ''"),
        (ends.frame(ends.HELLO, {"tool": "zc-msg", "options": hello_options(more=1)}), "options"),
        (ends.frame(ends.HELLO, {"tool": "zc-msg", "options": hello_options(**{"field-bytes": 1 << 34, "threads": 4096})}),
         "memory"),
        (ends.frame(ends.DATA, {"session": 0, "connection": 0}), "no such session"),
        (ends.frame(ends.DATA, {"session": "x"}), "no such session"),
        (ends.frame(ends.DATA, {}), "no such session"),
    ],
)
def test_strangers_are_refused_with_the_reason(server, data, why):
    kind, body = said_to(server, data)[2:]
    assert kind == ends.REFUSED and why in body["why"]
    assert msg(server.port, "--messages", 1).returncode == 0


def test_server_of_another_version_is_named():
    with socket.create_server(("127.0.0.1", 0)) as other:
        process = ends.start_client("zc-msg", ["client", "--host", "127.0.0.1", "--port", other.getsockname()[1],
                                               "--variant", "flat", "--field-bytes", 1])
        with other.accept()[0] as sock:
            assert ends.receive_frame(sock)[:3] == (ends.MAGIC, 1, ends.HELLO)
            sock.sendall(ends.frame(ends.REFUSED, {"why": "x"}, protocol=7))
            _, err = process.communicate(timeout=ends.LIMIT)
    assert process.returncode == 1 and "version 7" in err and "version 1" in err


# Under libzc ---------------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not LIBRARY.exists(), reason="libzc.so is not built")
@pytest.mark.parametrize("path", PATHS)
class TestUnderZc:
    @pytest.mark.parametrize("variant", VARIANTS)
    def test_bytes_are_right_under_libzc(self, path, variant):
        with Server("zc-msg", "--sessions", 3, path=path) as server:
            for wait in WAITS:
                got = result(msg(server.port, "--threads", 2, "--messages", 20, "--warmup", 5, "--wait", wait, "--verify",
                                 "--json", "-", variant=variant, size="32K", path=path))
                check_report(got, "variant", messages=40, verified=True)
            assert server.end()[::2] == (0, "")

    @pytest.mark.parametrize("preloaded", ["server", "client"])
    def test_one_end_alone_may_have_libzc(self, path, preloaded):
        with Server("zc-msg", "--sessions", 1, path=path if preloaded == "server" else None) as server:
            got = result(msg(server.port, "--messages", 20, "--verify", "--json", "-", variant="iovec", size="32K",
                             path=path if preloaded == "client" else None))
            assert got["verified"] is True
            assert server.end()[0] == 0

    def test_flipped_byte_is_found_under_libzc(self, path):
        with Server("zc-msg", path=path) as server:
            with Proxy(server.port, ends.flip_at(100000, to_server=False)) as proxy:
                done = msg(proxy.port, "--messages", 10, "--warmup", 0, "--verify", size="32K", path=path)
        assert done.returncode == 1 and "message 0, first wrong byte at offset 100000:" in done.stderr


def test_report_survives_zero_counts(server):
    got = result(msg(server.port, "--messages", 1, "--warmup", 0, "--json", "-", size=1))
    check_cpu(got["cpu"])
    assert got["messages"] == 1
