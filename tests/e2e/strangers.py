"""What an outsider tries at each kind of port: its own protocol, without credentials.

Each function returns what the stranger was given: nothing, if the port is closed to him. A port
that does not even speak its protocol is an AssertionError: it would look closed by mistake.
"""

import asyncio
import importlib
import pkgutil
import re
import socket
import struct
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import BinaryIO, NamedTuple

import grpc  # type: ignore[import-untyped]  # Ray brings it along, without types
import httpx
from pamqp import commands, frame
from pamqp.header import ProtocolHeader

_PATIENCE_SECONDS = 30.0
_REFUSED, _UNKNOWN = grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNIMPLEMENTED
#: A port that has not answered a line of text for this long counts as silent.
_SILENCE_SECONDS = 0.5
_HTTP_REFUSALS = frozenset({400, 401, 403, 404, 405})
_MECHANISMS = {"PLAIN", "AMQPLAIN"}


class Asked(NamedTuple):
    """One HTTP call."""

    method: str
    path: str
    body: bytes = b"{}"


async def http_gives(address: str, calls: Iterable[Asked]) -> list[str]:
    """Every answer that is more than a refusal."""
    given = []
    async with httpx.AsyncClient(base_url=f"http://{address}", timeout=_PATIENCE_SECONDS) as http:
        for method, path, body in calls:
            answer = await http.request(method, path, content=body)
            if answer.status_code not in _HTTP_REFUSALS:
                given.append(f"{method} {path}: {answer.status_code} {answer.text[:80]!r}")
    return given


class _Method(NamedTuple):
    path: str
    streams_in: bool = False
    streams_out: bool = False


#: Of services whose descriptions Ray does not ship, or only with a module that takes seconds.
_UNDESCRIBED = (
    _Method("/ray.serve.ASGIService/HandleRequest"),
    _Method("/ray.serve.ASGIService/HandleRequestStreaming", streams_out=True),
    _Method("/ray.serve.ASGIService/HandleRequestWithRejection"),
    _Method("/ray.serve.ASGIService/HandleRequestWithRejectionStreaming", streams_out=True),
    _Method("/ray.rpc.syncer.RaySyncer/StartSync", streams_in=True, streams_out=True),
    _Method("/ray.rpc.ObjectManagerService/Push"),
    _Method("/ray.rpc.ObjectManagerService/Pull"),
    _Method("/ray.rpc.ObjectManagerService/FreeObjects"),
)


async def grpc_gives(address: str) -> list[str]:
    """What any method of any service of Ray's, on any of its servers, gives without the token."""
    async with grpc.aio.insecure_channel(address) as channel:
        answers = await asyncio.gather(*(_call(channel, method) for method in _methods()))
    codes = {code for code, _ in answers}
    assert _REFUSED in codes, f"{address} knows no method of Ray's: {codes}"
    return [
        f"{method.path}: {code.name} {details}"
        for method, (code, details) in zip(_methods(), answers, strict=True)
        # A stream may be closed before its answer is read, which gives nothing either.
        if code not in (_REFUSED, _UNKNOWN)
        and not (code is grpc.StatusCode.INTERNAL and "RST_STREAM" in details)
    ]


@cache
def _methods() -> tuple[_Method, ...]:
    import ray.core.generated

    found = set(_UNDESCRIBED)
    for module in pkgutil.iter_modules(ray.core.generated.__path__):
        if not module.name.endswith("_pb2"):
            continue
        described = importlib.import_module(f"ray.core.generated.{module.name}").DESCRIPTOR
        for service in described.services_by_name.values():
            found |= {
                _Method(
                    f"/{service.full_name}/{method.name}",
                    method.client_streaming,
                    method.server_streaming,
                )
                for method in service.methods
            }
    return tuple(sorted(found))


async def _call(channel: grpc.aio.Channel, method: _Method) -> tuple[grpc.StatusCode, str]:
    """How a request without anything in it ended."""
    path, timeout = method.path, _PATIENCE_SECONDS
    try:
        match method.streams_in, method.streams_out:
            case True, True:
                # Without this header Ray 2.60 ends instead of asking for the token.
                node = (("node_id", 28 * "00"),)
                await channel.stream_stream(path)(timeout=timeout, metadata=node).read()
            case True, False:
                await channel.stream_unary(path)(timeout=timeout)
            case False, True:
                await channel.unary_stream(path)(b"", timeout=timeout).read()
            case _:
                await channel.unary_unary(path)(b"", timeout=timeout)
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or ""
    return grpc.StatusCode.OK, ""


_REDIS_COMMANDS = (
    "PING",
    "INFO",
    "KEYS *",
    "CONFIG GET *",
    "CLIENT LIST",
    "ACL WHOAMI",
    "HELLO 3",
    "GET x",
    "SET x y",
    "EVAL return(1) 0",
    "REPLICAOF NO ONE",
    "AUTH default",
    "AUTH foobared",
)


def redis_gives(address: str) -> list[str]:
    """Commands that are answered with more than that a password is wanted."""
    given = []
    with _dial(address) as line, line.makefile("rb") as answers:
        for command in _REDIS_COMMANDS:
            words = [word.encode() for word in command.split()]
            line.sendall(b"*%d\r\n" % len(words))
            line.sendall(b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words))
            answer = answers.readline()
            if not answer.startswith((b"-NOAUTH", b"-WRONGPASS")):
                given.append(f"{command}: {answer!r}")
    return given


_LOGINS = (
    ("ANONYMOUS", ""),
    ("PLAIN", "\0guest\0guest"),
    ("PLAIN", "\0batchyard\0"),
    ("PLAIN", "\0demo\0demo"),
    ("AMQPLAIN", ""),
)


def amqp_gives(address: str) -> list[str]:
    """Ways of logging in that need no password of ours."""
    # A broker lets each who is refused wait for three seconds.
    with ThreadPoolExecutor(len(_LOGINS)) as threads:
        answers = threads.map(lambda login: _amqp_login(address, *login), _LOGINS)
    return [given for answer in answers for given in answer]


def _amqp_login(address: str, mechanism: str, response: str) -> list[str]:
    with _dial(address) as line, line.makefile("rb") as answers:
        line.sendall(ProtocolHeader().marshal())
        start = _amqp_frame(answers)
        assert isinstance(start, commands.Connection.Start), start
        given = [f"offers {name}" for name in {*start.mechanisms.split()} - _MECHANISMS]
        login = commands.Connection.StartOk({}, mechanism, response, "en_US")
        line.sendall(frame.marshal(login, 0))
        answer = _amqp_frame(answers)
    if answer is not None and not isinstance(answer, commands.Connection.Close):
        given.append(f"{mechanism} {response!r}: {answer!r}")
    return given


def _amqp_frame(answers: BinaryIO) -> object:
    """The next frame; None at the end."""
    head = _read(answers, 7)
    return frame.unmarshal(head + _read(answers, int.from_bytes(head[3:]) + 1))[2] if head else None


def epmd_gives(address: str) -> list[str]:
    """Names of nodes, and whether it lets itself be ended or a node's name be taken."""
    names = _exchange(address, _sized(b"n"))[4:].decode()
    given = re.findall(r"^name (\S+) at port \d+$", names, flags=re.MULTILINE)
    # Who calls from elsewhere is not even answered.
    if _exchange(address, _sized(b"k")) not in (b"NO", b""):
        given.append("its own end")
    for name in list(given):
        claim = struct.pack(">BHBBHHH", 120, 9, 77, 0, 6, 5, len(name)) + name.encode() + b"\0\0"
        # The second byte is the reason of a refusal.
        if _exchange(address, _sized(claim), max_bytes=2)[1:] == b"\0":
            given.append(f"the name {name}")
    return given


def erlang_gives(address: str) -> list[str]:
    """Whatever an Erlang node says to one who calls it without its cookie."""
    # As OTP 25 has them: a node that knows less is not even asked for the cookie.
    flags, name = 0xD07DF7FBD, b"stranger@localhost"
    with _dial(address) as line, line.makefile("rb") as answers:
        line.sendall(_sized(struct.pack(">cQIH", b"N", flags, 1, len(name)) + name))
        status, challenge = _erlang_message(answers), _erlang_message(answers)
        assert (status, challenge[:1]) == (b"sok", b"N"), (status, challenge)
        line.sendall(_sized(b"r" + bytes(4 + 16)))
        answer = _erlang_message(answers)
    return [repr(answer)] if answer else []


def _erlang_message(answers: BinaryIO) -> bytes:
    return _read(answers, int.from_bytes(_read(answers, 2)))


_CEPH_BANNER = b"ceph v2\n"
_HELLO, _AUTH_REQUEST, _AUTH_BAD_METHOD = 1, 2, 3


def ceph_gives(address: str) -> list[str]:
    """Whatever a Ceph daemon says to one who proposes to do without authentication."""
    client, nowhere = bytes([8]), struct.pack("<BBBIIII", 1, 1, 1, 12, 0, 0, 0)
    # Method 1 is none; one mode of connection, by checksums; nothing else to say.
    without = struct.pack("<IIII", 1, 1, 1, 0)
    with _dial(address) as line, line.makefile("rb") as answers:
        line.sendall(_CEPH_BANNER + struct.pack("<HQQ", 16, 0, 0))
        assert answers.read(len(_CEPH_BANNER) + 18).startswith(_CEPH_BANNER)
        line.sendall(_ceph_frame(_HELLO, client + nowhere))
        assert _ceph_tag(answers) == _HELLO
        line.sendall(_ceph_frame(_AUTH_REQUEST, without))
        tag = _ceph_tag(answers)
    return [] if tag == _AUTH_BAD_METHOD else [f"an answer of kind {tag}"]


def _ceph_frame(tag: int, segment: bytes) -> bytes:
    head = struct.pack("<BBIH18xH", tag, 1, len(segment), 8, 0)
    checks = struct.pack("<B4I", 0, _crc32c(segment, 0xFFFFFFFF), 0, 0, 0)
    return head + struct.pack("<I", _crc32c(head, 0)) + segment + checks


def _ceph_tag(answers: BinaryIO) -> int | None:
    """The kind of the next frame; None at the end."""
    head = _read(answers, 32)
    if not head:
        return None
    _read(answers, sum(struct.unpack_from("<I", head, 2 + 6 * place)[0] for place in range(4)) + 17)
    return head[0]


def _crc32c(data: bytes, crc: int) -> int:
    """Castagnoli's, as Ceph begins it and without the last inversion."""
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc


def anything_gives(address: str) -> list[str]:
    """Whatever a socket of no known protocol says, unasked and to a line of text."""
    with _dial(address) as line:
        line.sendall(b"GET / HTTP/1.1\r\nHost: stranger\r\n\r\n")
        line.settimeout(_SILENCE_SECONDS)
        try:
            answer = line.recv(4096)
        except TimeoutError:
            return []
    return [repr(answer)] if answer else []


def _sized(message: bytes) -> bytes:
    return len(message).to_bytes(2, "big") + message


def _exchange(address: str, message: bytes, *, max_bytes: int = -1) -> bytes:
    with _dial(address) as line, line.makefile("rb") as answers:
        line.sendall(message)
        return _read(answers, max_bytes)


def _read(answers: BinaryIO, size: int) -> bytes:
    """Fewer bytes at the end, of whichever kind it is."""
    try:
        return answers.read(size)
    except ConnectionResetError:
        return b""


def _dial(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), _PATIENCE_SECONDS)
