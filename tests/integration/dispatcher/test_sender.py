"""One attempt: where it goes, how long it takes, and whom it trusts."""

import asyncio
import datetime as dt
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.receiver import receiving
from tests.webhooks import a_sender

Speaker = Callable[[asyncio.StreamWriter], Awaitable[None]]
HEADERS = {"webhook-id": "wh_1"}


async def test_it_connects_to_the_address_that_was_checked_under_the_name_of_the_url() -> None:
    looked_up: list[str] = []

    async def resolve(host: str, port: int) -> Sequence[str]:
        looked_up.append(host)
        return ["127.0.0.1"]

    async with receiving() as receiver, a_sender(resolve=resolve) as sender:
        answer = await sender.post(f"http://hook.invalid:{receiver.port}/a?b=c", HEADERS, b"{}")

    assert answer.status == 200
    assert looked_up == ["hook.invalid"]
    (call,) = receiver.calls
    assert call.headers["host"] == f"hook.invalid:{receiver.port}"
    assert (call.path, call.body, call.id) == ("/a?b=c", b"{}", "wh_1")


async def test_a_name_that_turns_private_between_two_look_ups_is_refused() -> None:
    addresses = iter([["8.8.8.8"], ["127.0.0.1"]])

    async def resolve(host: str, port: int) -> Sequence[str]:
        return next(addresses)

    async with receiving() as receiver, a_sender(networks=(), resolve=resolve) as sender:
        assert await resolve("rebinding.invalid", 80) == ["8.8.8.8"]

        answer = await sender.post(f"http://rebinding.invalid:{receiver.port}/", HEADERS, b"{}")

    assert answer.status is None
    assert answer.error == "'rebinding.invalid' is not at a public address."
    assert receiver.calls == []


async def test_the_next_address_is_tried_when_one_does_not_answer() -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        return ["127.0.0.2", "127.0.0.1"]

    async with receiving() as receiver, a_sender(resolve=resolve) as sender:
        answer = await sender.post(f"http://hook.invalid:{receiver.port}/", HEADERS, b"{}")

    assert answer.status == 200


async def test_nobody_listening_is_an_answer_too() -> None:
    async with receiving() as receiver:
        pass
    async with a_sender() as sender:
        answer = await sender.post(receiver.url, HEADERS, b"{}")

    assert answer.status is None
    assert str(answer.error).startswith("ConnectError")
    assert not answer.is_timeout


async def test_a_name_that_does_not_exist_is_an_answer_too() -> None:
    async with a_sender() as sender:
        answer = await sender.post("http://nowhere.invalid/", HEADERS, b"{}")

    assert answer.status is None
    assert "gaierror" in str(answer.error)


async def test_an_answer_without_end_is_cut_off_and_counts() -> None:
    async def pour(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(b"x" * 65_536)
            await writer.drain()

    async with raw_server(pour) as port, a_sender() as sender, asyncio.timeout(60):
        answer = await sender.post(f"http://127.0.0.1:{port}/", HEADERS, b"{}")

    assert answer.status == 200


async def test_an_answer_that_drips_is_cut_off_by_the_time() -> None:
    async def drip(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n")
        while True:
            writer.write(b"x: y\r\n")
            await writer.drain()
            await asyncio.sleep(0.02)

    async with raw_server(drip) as port, a_sender(timeout_seconds=0.3) as sender:
        answer = await sender.post(f"http://127.0.0.1:{port}/", HEADERS, b"{}")

    assert answer.status is None
    assert answer.is_timeout


async def test_what_is_not_http_is_an_answer_too() -> None:
    async def say(writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.invalid ESMTP\r\n\r\n")
        await writer.drain()

    async with raw_server(say) as port, a_sender() as sender:
        answer = await sender.post(f"http://127.0.0.1:{port}/", HEADERS, b"{}")

    assert answer.status is None
    assert str(answer.error).startswith("RemoteProtocolError")


@pytest.mark.parametrize(
    ("certified", "is_trusted", "status"),
    [("hook.invalid", True, 200), ("other.invalid", True, None), ("hook.invalid", False, None)],
)
async def test_tls_is_checked_for_the_name_of_the_url(
    certified: str, is_trusted: bool, status: int | None, tmp_path: Path
) -> None:
    certificate = a_certificate(certified, tmp_path)
    named: list[str | None] = []
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate)
    server.sni_callback = lambda _socket, name, _context: named.append(name)
    client = ssl.create_default_context(cafile=str(certificate) if is_trusted else None)

    async def resolve(host: str, port: int) -> Sequence[str]:
        return ["127.0.0.1"]

    async with (
        receiving(tls=server) as receiver,
        a_sender(resolve=resolve, tls=client) as sender,
    ):
        answer = await sender.post(f"https://hook.invalid:{receiver.port}/", HEADERS, b"{}")

    assert answer.status == status
    assert named == ["hook.invalid"]
    if status is None:
        assert "CERTIFICATE_VERIFY_FAILED" in str(answer.error)
        assert receiver.calls == []


@asynccontextmanager
async def raw_server(speak: Speaker) -> AsyncIterator[int]:
    """What answers any request by `speak`."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            await speak(writer)
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


def a_certificate(name: str, folder: Path) -> Path:
    """A file with a certificate that vouches for itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = folder / "certificate.pem"
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    return path
