# SPDX-License-Identifier: MIT
"""zc-ttcp: every mode and its parameters, what --verify sees at either end, and how failures are told."""
import json
import socket

import pytest

import ends
from ends import LIBRARY, PATHS, Proxy, Server, check_report, result, ttcp

# Connections, messages for each counted one, parameters that only this mode has.
MODES = {
    "stream": (1, 1, []),
    "ping-pong": (1, 2, []),
    "overlap": (1, 1, ["--compute-us", 20]),
    "touch": (1, 1, ["--window", 3, "--touch", "page"]),
    "hot-spot": (3, 2, ["--clients", 3]),
    "multi-stream": (4, 1, ["--threads", 4]),
    "multi-client": (3, 1, ["--clients", 3]),
}
ANSWERING = ["ping-pong", "hot-spot"]
SMALL = ["--warmup", 3, "--json", "-"]


@pytest.fixture(scope="module")
def server():
    with Server("zc-ttcp") as one:
        yield one
        assert one.terminate()[0] == 0


@pytest.mark.parametrize("wait", ["blocking", "poll", "epoll"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("verify", [[], ["--verify"]], ids=["plain", "verify"])
def test_every_mode(server, mode, wait, verify):
    connections, each, more = MODES[mode]
    got = result(ttcp(server.port, mode, 5000, *SMALL, *more, "--count", 25, "--wait", wait, "--buffers", 4, "--nodelay",
                      *verify))
    answers = mode in ANSWERING
    check_report(got, "mode", tool="zc-ttcp", role="transmitter", mode=mode, threads=connections, bytes_per_message=5000,
                 messages=25 * connections * each, latency_of="half_round_trip" if answers else "send_call",
                 verified=True if verify else None)
    assert got["peer_latency_of"] == ("send_call" if answers else None)
    parameters = got["parameters"]
    assert parameters["buffers"] == 4 and parameters["count"] == 25 and parameters["wait"] == wait
    for other, (_, _, options) in MODES.items():
        for name in [word[2:] for word in options[::2]]:
            assert (name in parameters) == (f"--{name}" in more), (other, name)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("size", [1, 7, 4097, "1M"])
def test_sizes(server, mode, size):
    got = result(ttcp(server.port, mode, size, "--warmup", 1, "--json", "-", *MODES[mode][2], "--count", 5, "--verify"))
    check_report(got, "mode", bytes_per_message=1048576 if size == "1M" else size, verified=True)


@pytest.mark.parametrize("touch", ["all", "page"])
@pytest.mark.parametrize("window, buffers", [(1, 1), (5, 2), (2, 5), (8, 8)])
def test_touched_buffers_arrive_as_they_were(server, touch, window, buffers):
    got = result(ttcp(server.port, "touch", 20000, *SMALL, "--count", 40, "--touch", touch, "--window", window, "--buffers",
                      buffers, "--verify"))
    assert got["verified"] is True and got["messages"] == 40


@pytest.mark.parametrize("mode", ["stream", "ping-pong"])
@pytest.mark.parametrize("offset", [1, 100, 4095, "64K"])
def test_buffers_off_the_page(server, mode, offset):
    got = result(ttcp(server.port, mode, 9000, *SMALL, "--count", 10, "--offset-bytes", offset, "--buffers", 3, "--verify"))
    assert got["verified"] is True


def test_time_ends_a_run(server):
    got = result(ttcp(server.port, "multi-client", 1000, "--clients", 2, "--seconds", 0.2, "--warmup", 0, "--json", "-"))
    assert got["messages"] >= 2 and got["seconds"] >= 0.2


def test_computing_takes_processor_time(server):
    got = result(ttcp(server.port, "overlap", 1000, *SMALL, "--count", 20, "--compute-us", 2000))
    # A fixed amount of work: it can take longer than was asked for, and hardly less.
    assert got["cpu"]["user_s"] >= 20 * 2000e-6 / 2


def test_skewed_receiver_holds_the_stream_up(server):
    got = result(ttcp(server.port, "stream", "64K", "--warmup", 0, "--json", "-", "--count", 40, "--receiver-delay-us", 2000,
                      "--verify"))
    assert got["verified"] is True and got["seconds"] >= 40 * 2000e-6


def test_short_options(server):
    done = ends.client("zc-ttcp", ["-t", "localhost", f"--port={server.port}", "--mode=stream", "--bytes=1K", "--count=2",
                                   "--verify"])
    assert done.returncode == 0, done.stderr
    for word in ["stream", "Gbit/s", "send_call", "every byte verified"]:
        assert word in done.stdout


def test_receiver_ends_after_its_sessions_and_writes_json(tmp_path):
    file = tmp_path / "receiver.json"
    with Server("zc-ttcp", "--sessions", len(MODES), "--json", file) as server:
        for mode, (_, _, more) in MODES.items():
            assert ttcp(server.port, mode, 100, "--count", 5, "--verify", *more).returncode == 0
        assert server.end()[::2] == (0, "")
    report = json.loads(file.read_text())
    assert [session["mode"] for session in report["sessions"]] == list(MODES)
    for session in report["sessions"]:
        connections, each, _ = MODES[session["mode"]]
        check_report(session, "mode", tool="zc-ttcp", role="receiver", messages=5 * connections * each, verified=True,
                     latency_of="send_call" if session["mode"] in ANSWERING else None)


# Wrong bytes and broken connections -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("message, offset", [(0, 0), (6, 4321)])
def test_flipped_byte_is_found_by_the_receiver(server, mode, message, offset):
    with Proxy(server.port, ends.flip_at(message * 5000 + offset, to_server=True)) as proxy:
        done = ttcp(proxy.port, mode, 5000, *SMALL, *MODES[mode][2], "--count", 8, "--verify")
    assert done.returncode == 1 and json.loads(done.stdout)["verified"] is False
    assert f"message {message}, first wrong byte at offset {offset}:" in done.stderr


@pytest.mark.parametrize("mode", ANSWERING)
def test_flipped_byte_of_an_answer_is_found(server, mode):
    # The byte that ends the warm-up comes before the answers.
    with Proxy(server.port, ends.flip_at(1 + 6 * 5000 + 4321, to_server=False)) as proxy:
        done = ttcp(proxy.port, mode, 5000, "--warmup", 0, "--json", "-", *MODES[mode][2], "--count", 8, "--verify")
    assert done.returncode == 1 and json.loads(done.stdout)["verified"] is False
    assert "message 6, first wrong byte at offset 4321:" in done.stderr


def test_flipped_byte_passes_unasked(server):
    with Proxy(server.port, ends.flip_at(777, to_server=True)) as proxy:
        assert result(ttcp(proxy.port, "stream", 5000, *SMALL, "--count", 8))["verified"] is None


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("position", [5000 * 6, 5000 * 6 + 44])
def test_missing_bytes_are_a_failure(server, mode, position):
    with Proxy(server.port, ends.cut_at(position, to_server=True)) as proxy:
        done = ttcp(proxy.port, mode, 5000, *SMALL, *MODES[mode][2], "--count", 8)
    assert done.returncode == 1 and not done.stdout and done.stderr.startswith("zc-ttcp: ")


def start_endless(port, mode):
    return ends.start_client("zc-ttcp", ["-t", "127.0.0.1", "--port", port, "--mode", mode, "--bytes", 5000, "--seconds", 600,
                                         "--warmup", 0, *MODES[mode][2]])


@pytest.mark.parametrize("mode", MODES)
def test_killed_receiver_is_told(mode):
    ends.check_killed_server("zc-ttcp", lambda port: start_endless(port, mode))


@pytest.mark.parametrize("mode", MODES)
def test_killed_transmitter_leaves_nothing_behind(mode):
    with Server("zc-ttcp", "--sessions", 2) as server:
        ends.check_killed_client(server, lambda port: start_endless(port, mode),
                                 lambda: ttcp(server.port, "stream", 100, "--count", 5, "--verify"))


def test_standstill_is_noticed(server):
    with Proxy(server.port, lambda to_server, position, chunk: b"" if to_server else chunk) as proxy:
        done = ttcp(proxy.port, "ping-pong", 1000, "--count", 10, "--warmup", 0, "--timeout", 1)
    assert done.returncode == 1 and "nothing has moved for 1 s (--timeout), after 0 messages" in done.stderr


# Arguments ---------------------------------------------------------------------------------------------------------------

GOOD = ["-t", "127.0.0.1", "--port", "1", "--mode", "stream", "--bytes", "100"]


@pytest.mark.parametrize(
    "arguments, named",
    [
        ([], ["--receive (-r)", "--transmit HOST"]),
        (["--port", "0"], ["--receive (-r)", "--transmit HOST"]),
        (["-r"], ["--port", "missing"]),
        (["-r", *GOOD], ["--receive (-r)", "--transmit HOST"]),
        (["-r", "--port", "0", "--mode", "stream"], ["--mode", "transmitter only"]),
        (GOOD[:4], ["--mode", "missing"]),
        (GOOD[:6], ["--bytes", "missing"]),
        ([*GOOD, "--mode", "fast"], ["--mode fast", "stream|ping-pong|overlap|touch|hot-spot|multi-stream|multi-client"]),
        ([*GOOD, "--bytes", "0"], ["--bytes 0:", "from 1"]),
        ([*GOOD, "--bytes", "16G", "--buffers", "65536"], ["--bytes", "memory", "allowed is up to"]),
        ([*GOOD, "--bytes", "1", "--offset-bytes", "1M", "--buffers", "65536"], ["--offset-bytes", "memory"]),
        ([*GOOD, "--count", "-1"], ["--count -1", "allowed"]),
        ([*GOOD, "--count", "1", "--seconds", "1"], ["--count", "--seconds"]),
        ([*GOOD, "--seconds", "0"], ["--seconds 0", "allowed"]),
        ([*GOOD, "--port", "0"], ["--port 0", "from 1 to 65535"]),
        ([*GOOD, "--window", "3"], ["--window", "no meaning in mode stream"]),
        ([*GOOD, "--compute-us", "3"], ["--compute-us", "no meaning in mode stream"]),
        ([*GOOD, "--clients", "3"], ["--clients", "no meaning in mode stream"]),
        ([*GOOD, "--threads", "3"], ["--threads", "no meaning in mode stream"]),
        ([*GOOD, "--mode", "touch", "--window", "0"], ["--window 0", "from 1"]),
        ([*GOOD, "--mode", "hot-spot", "--clients", "1025"], ["--clients 1025", "1024"]),
        ([*GOOD, "--wait", "forever"], ["--wait forever", "blocking|poll|epoll"]),
        ([*GOOD, "--sessions", "1"], ["--sessions", "receiver only"]),
        ([*GOOD, "--nonsense"], ["--nonsense"]),
        ([*GOOD, "-x"], ["-x"]),
        ([*GOOD, "extra"], ["extra"]),
    ],
)
def test_usage_errors(arguments, named):
    ends.check_usage_error("zc-ttcp", arguments, named)


def test_help_names_every_option():
    ends.check_help("zc-ttcp", ["receive", "transmit", "port", "mode", "bytes", "count", "seconds", "compute-us", "window",
                                "touch", "threads", "clients", "offset-bytes", "buffers", "receiver-delay-us", "wait",
                                "verify", "json", "bind", "sessions", "nodelay", "warmup", "timeout", "socket-buffer"])


def test_nobody_listens():
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        done = ttcp(reserved.getsockname()[1], "stream", 1)
    assert done.returncode == 1 and "refused" in done.stderr and "127.0.0.1" in done.stderr


# Under libzc ---------------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not LIBRARY.exists(), reason="libzc.so is not built")
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("mode", MODES)
def test_bytes_are_right_under_libzc(path, mode):
    more = MODES[mode][2]
    with Server("zc-ttcp", "--sessions", 3, path=path) as server:
        for wait, size in [("blocking", "32K"), ("epoll", "32K"), ("poll", 100)]:
            got = result(ttcp(server.port, mode, size, *SMALL, *more, "--count", 60, "--buffers", 2, "--wait", wait, "--verify",
                              path=path))
            check_report(got, "mode", verified=True)
        assert server.end()[::2] == (0, "")


@pytest.mark.skipif(not LIBRARY.exists(), reason="libzc.so is not built")
@pytest.mark.parametrize("path", PATHS)
def test_buffers_rewritten_at_once_under_libzc(path):
    with Server("zc-ttcp", path=path) as server:
        for touch, offset in [("all", 0), ("page", 100)]:
            got = result(ttcp(server.port, "touch", "256K", *SMALL, "--count", 60, "--touch", touch, "--offset-bytes", offset,
                              "--verify", path=path))
            assert got["verified"] is True
