# SPDX-License-Identifier: MIT
"""Both ends of the measuring tools, and a proxy between them that can spoil what passes."""
import json
import os
import re
import signal
import socket
import struct
import subprocess
import threading

from conftest import BUILD, PATHS as ALL_PATHS, clean_environment

TOOLS = BUILD / "apps/tools"
LIMIT = 120
HEADER = struct.Struct(">IHHI")  # magic, protocol, kind, bytes
MAGIC, PROTOCOL, HELLO, REFUSED, DATA = 0x7A637466, 1, 1, 3, 8
PATHS = [name for name in ALL_PATHS if name != "tcp"]
LIBRARY = BUILD / "preload/libzc.so"


def command(tool, arguments, path=None):
    """The command line of a tool, under libzc on `path` if one is named."""
    prefix = [BUILD / "apps/zc/zc", "run", "-p", path, "--"] if path else []
    return [str(word) for word in [*prefix, TOOLS / tool, *arguments]]


class Server:
    """A serving end on a port of the kernel's choice; killed, if it still runs, at the end of a with block."""

    def __init__(self, tool, *arguments, path=None, environment=None):
        start = ["--receive"] if tool == "zc-ttcp" else ["server"]
        self.process = subprocess.Popen(
            command(tool, [*start, "--port", 0, "--bind", "127.0.0.1", *arguments], path),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=clean_environment(**(environment or {})),
        )
        line = self.process.stdout.readline()
        found = re.fullmatch(r"listening on 127\.0\.0\.1:(\d+)\n", line)
        if not found:
            raise AssertionError(line + self.process.communicate()[1])
        self.port = int(found[1])

    def __enter__(self):
        return self

    def __exit__(self, *ignored):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def end(self):
        """Waits for the server to end by itself. Returns status, standard output and error."""
        out, err = self.process.communicate(timeout=LIMIT)
        return self.process.returncode, out, err

    def terminate(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        return self.end()


def client(tool, arguments, path=None):
    return subprocess.run(
        command(tool, arguments, path),
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT,
        stdin=subprocess.DEVNULL,
        env=clean_environment(),
    )


def start_client(tool, arguments):
    return subprocess.Popen(
        command(tool, arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean_environment()
    )


def msg(port, *arguments, variant="flat", size=1000, **keywords):
    words = ["client", "--host", "127.0.0.1", "--port", port, "--variant", variant, "--field-bytes", size]
    return client("zc-msg", [*words, *arguments], **keywords)


def writes(port, repetitions, nbufs, bufsize, kind, *arguments, **keywords):
    return client("zc-writes", ["client", "127.0.0.1", port, repetitions, nbufs, bufsize, kind, *arguments], **keywords)


def ttcp(port, mode, size, *arguments, **keywords):
    return client("zc-ttcp", ["-t", "127.0.0.1", "--port", port, "--mode", mode, "--bytes", size, *arguments], **keywords)


def result(done):
    """The JSON of a client that was run with --json -."""
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return json.loads(done.stdout)


def check_cpu(cpu):
    assert set(cpu) == {"user_s", "system_s", "s_per_gb", "voluntary_switches", "involuntary_switches"}
    assert cpu["user_s"] >= 0 and cpu["system_s"] >= 0
    assert isinstance(cpu["voluntary_switches"], int) and isinstance(cpu["involuntary_switches"], int)


def check_latency(latency):
    assert set(latency) == {"mean", "p50", "p90", "p99", "p999", "max"}
    order = [latency[name] for name in ["p50", "p90", "p99", "p999", "max"]]
    assert order == sorted(order) and order[0] > 0
    assert 0 < latency["mean"] <= latency["max"]


def check_report(report, kind, **expected):
    """Checks what the JSON of every measuring end has in common."""
    common = {"tool", "role", kind, "bytes_per_message", "threads", "seconds", "messages", "bytes", "gbit_s", "latency_of"}
    assert common | {"latency_us", "cpu", "peer_cpu", "verified", "parameters"} <= set(report)
    assert report["bytes"] == report["messages"] * report["bytes_per_message"]
    assert report["seconds"] > 0
    assert abs(report["gbit_s"] / (report["bytes"] * 8e-9 / report["seconds"]) - 1) < 1e-6
    check_cpu(report["cpu"])
    check_cpu(report["peer_cpu"])
    assert (report["latency_us"] is None) == (report["latency_of"] is None)
    if report["latency_us"]:
        check_latency(report["latency_us"])
    for name, value in expected.items():
        assert report[name] == value, name


class Cut(Exception):
    """Raised by a spoil: `rest` is still passed on, then the stream ends."""

    def __init__(self, rest):
        super().__init__()
        self.rest = rest


def shut_down(sock, how=socket.SHUT_RDWR):
    """Shuts a socket down that may be gone."""
    try:
        sock.shutdown(how)
    except OSError:
        pass


class Proxy:
    """
    Passes connections on to a port of this host. `spoil(to_server, position, chunk)` sees the bytes of data connections
    behind their first frame, and returns what is to be passed on; Cut ends the connection.
    """

    def __init__(self, port, spoil):
        self.target, self.spoil = port, spoil
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.sockets, self.threads = [], []
        self.start(self.accept)

    def start(self, work, *arguments):
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self.threads.append(thread)
        thread.start()
        return thread

    def accept(self):
        while True:
            try:
                near = self.listener.accept()[0]
                far = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                return
            self.sockets += [near, far]
            self.start(self.connection, near, far)

    def connection(self, near, far):
        header = receive(near, HEADER.size)
        if len(header) < HEADER.size:
            near.close()
            return far.close()
        _, _, kind, count = HEADER.unpack(header)
        far.sendall(header + receive(near, count))
        other = self.start(self.pump, far, near, False, kind == DATA)
        self.pump(near, far, True, kind == DATA)
        other.join()
        # Who still sends is told only when the socket is closed, not when it is shut down: its window may be full.
        near.close()
        return far.close()

    def pump(self, source, sink, to_server, is_data):
        position = 0
        try:
            while chunk := source.recv(65536):
                sink.sendall(self.spoil(to_server, position, chunk) if is_data else chunk)
                position += len(chunk)
            sink.shutdown(socket.SHUT_WR)
        except Cut as cut:
            sink.sendall(cut.rest)
            shut_down(sink, socket.SHUT_WR)
            shut_down(source)
        except OSError:
            shut_down(source)
            shut_down(sink)

    def __enter__(self):
        return self

    def __exit__(self, *ignored):
        for one in [self.listener, *self.sockets]:
            shut_down(one)
        for thread in self.threads:
            thread.join(LIMIT)
        for one in [self.listener, *self.sockets]:
            one.close()


def receive(source, count):
    """Receives `count` bytes, or fewer at the end of the stream."""
    data = b""
    while len(data) < count:
        chunk = source.recv(count - len(data))
        if not chunk:
            break
        data += chunk
    return data


def flip_at(wanted, to_server, mask=0x10):
    """A spoil that flips bits of the byte at `wanted` in one direction."""

    def spoil(direction, position, chunk):
        if direction != to_server or not position <= wanted < position + len(chunk):
            return chunk
        spoilt = bytearray(chunk)
        spoilt[wanted - position] ^= mask
        return bytes(spoilt)

    return spoil


def cut_at(wanted, to_server):
    """A spoil that ends the connection after `wanted` bytes in one direction have passed."""
    def spoil(direction, position, chunk):
        if direction != to_server or position + len(chunk) <= wanted:
            return chunk
        raise Cut(chunk[: wanted - position])

    return spoil


class Passed:
    """A spoil that spoils nothing, and can be waited for until so many chunks have passed."""

    def __init__(self, chunks):
        self.left, self.event = chunks, threading.Event()

    def __call__(self, _to_server, _position, chunk):
        self.left -= 1
        if self.left <= 0:
            self.event.set()
        return chunk

    def wait(self):
        assert self.event.wait(LIMIT), "nothing has passed"


def run_amid(server, client, kill):
    """Starts client(port) and calls kill(its process) once messages pass; returns its outputs when all of it is gone."""
    passed = Passed(50)
    with Proxy(server.port, passed) as proxy:
        process = client(proxy.port)
        passed.wait()
        kill(process)
        # Processes that it has started hold its standard output: this returns when they are gone too.
        return process, *process.communicate(timeout=LIMIT)


def check_killed_server(tool, client):
    """A client whose server is killed says so, and reports nothing."""
    with Server(tool) as server:
        process, out, err = run_amid(server, client, lambda _: server.process.kill())
    assert process.returncode == 1 and not out
    assert "of message" in err or "gone" in err


def check_killed_client(server, client, another):
    """A client that is killed fails its session; the server serves another one, and tells."""
    run_amid(server, client, lambda process: process.kill())
    assert another().returncode == 0
    status, _, err = server.end()
    assert status == 1 and "went away" in err


def frame(kind, body, protocol=PROTOCOL, magic=MAGIC):
    text = json.dumps(body).encode()
    return HEADER.pack(magic, protocol, kind, len(text)) + text


def receive_frame(sock):
    header = receive(sock, HEADER.size)
    if not header:
        return None
    magic, protocol, kind, count = HEADER.unpack(header)
    return magic, protocol, kind, json.loads(receive(sock, count))


def check_usage_error(tool, arguments, named):
    """Arguments that are not allowed: status 2, and one line that names the argument and what is allowed."""
    done = client(tool, arguments)
    assert done.returncode == 2 and not done.stdout
    assert done.stderr.startswith(f"{tool}: ") and done.stderr.count("\n") == 1
    for word in named:
        assert word in done.stderr


def check_help(tool, options):
    """Help and man page name every option."""
    done = client(tool, ["--help"])
    assert done.returncode == 0 and not done.stderr
    page = (BUILD / f"docs/{tool}.1").read_text().replace("\\-", "-")
    assert page.count("\n.TP\n") > len(options) and "\n.SH SYNOPSIS\n" in page
    for option in options:
        assert f"--{option}" in done.stdout
        assert re.search(rf"^\.B (-\w, )?--{option}( |$)", page, re.M), option
    assert max(map(len, done.stdout.splitlines())) <= 110


def leftovers(directory):
    return sorted(os.listdir(directory))
