"""Who sends slowly is told so in time, and keeps nobody from being answered."""

import http.client
import json
import re
import socket
import time
from contextlib import suppress

import httpx
import pytest

from tests.tuner_service.serving import bounded
from tuner_service.app import create_app

BODY = json.dumps({"kernel": "gemm", "problem": {"m": 64, "n": 64, "k": 64}}).encode()
HEAD = (
    b"POST /v1/recommendations HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"X-Request-ID: slow-1\r\nContent-Length: "
)
LIMIT_S = 1.0


@pytest.fixture
def address(settings, store):
    changes = {
        "header_timeout_s": LIMIT_S, "body_timeout_s": LIMIT_S, "max_in_flight": 2,
        "access_log": "off",
    }  # fmt: skip
    settings = settings.model_copy(update=changes)
    with bounded(create_app(settings, store), settings) as address:
        yield address


def answer_of(connection):
    """Return status, headers and body of an answer; the connection has to be closed after it."""
    raw = b""
    with suppress(ConnectionResetError):  # a byte that met the answer on the way was never read
        while piece := connection.recv(65536):
            raw += piece
    head, _, body = raw.partition(b"\r\n\r\n")
    lines = head.decode().lower().split("\r\n")
    return int(lines[0].split()[1]), dict(re.split(": *", h, maxsplit=1) for h in lines[1:]), body


def drip(connection, data, limit_s=10 * LIMIT_S):
    """Send byte after byte until the other side has had enough; return how long that took."""
    began = time.monotonic()
    connection.settimeout(0.05)
    for number in range(len(data)):
        try:
            connection.sendall(data[number : number + 1])
            if connection.recv(1, socket.MSG_PEEK):
                break
        except TimeoutError:
            continue
        except OSError:
            break
        assert time.monotonic() - began < limit_s
    connection.settimeout(10)
    return time.monotonic() - began


def told(found, what):
    status, headers, body = found
    assert (status, headers["content-type"]) == (408, "application/problem+json")
    assert headers["connection"] == "close"
    problem = json.loads(body)
    assert (problem["status"], problem["code"]) == (408, "SV938")
    assert problem["detail"] == f"expected the whole {what} of the request within 1 s"
    return headers


def test_slow_bodies_are_refused_in_time_and_others_answered_meanwhile(address):
    """Each held one of the places of those who wait for an answer, without an end."""
    url = f"http://{address[0]}:{address[1]}"
    asked = {"content": BODY, "headers": {"content-type": "application/json"}}
    assert httpx.post(f"{url}/v1/recommendations", **asked).status_code == 200
    slow = [socket.create_connection(address) for _ in range(3)]  # there are two places
    for connection in slow:
        connection.sendall(HEAD + str(len(BODY) + 500).encode() + b"\r\n\r\n" + BODY[:5])
    time.sleep(0.1)
    began = time.monotonic()
    assert httpx.post(f"{url}/v1/recommendations", **asked).status_code == 200
    assert time.monotonic() - began < LIMIT_S * 0.8, "answered after the slow ones, not meanwhile"
    taken_s = drip(slow[0], BODY[5:] + b" " * 500)
    assert taken_s < LIMIT_S + 1
    for connection in slow:
        assert told(answer_of(connection), "body")["x-request-id"] == "slow-1"
        connection.close()
    assert httpx.post(f"{url}/v1/recommendations", **asked).status_code == 200


def test_a_body_that_comes_in_pieces_in_time_is_answered(address):
    with socket.create_connection(address) as connection:
        connection.sendall(HEAD + str(len(BODY)).encode() + b"\r\nConnection: close\r\n\r\n")
        for start in range(0, len(BODY), 20):
            time.sleep(0.02)
            connection.sendall(BODY[start : start + 20])
        assert answer_of(connection)[0] == 200


def test_a_slow_header_is_refused_in_time(address):
    with socket.create_connection(address) as connection:
        taken_s = drip(connection, b"GET /healthz HTTP/1.1\r\nX-Long: " + b"x" * 1000)
        assert LIMIT_S * 0.8 < taken_s < LIMIT_S + 1
        told(answer_of(connection), "header")


def test_a_slow_header_of_a_later_request_is_refused_too(address):
    with socket.create_connection(address) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        first = b""
        while b'"ok"}' not in first:
            first += connection.recv(65536)
        time.sleep(LIMIT_S * 1.2)  # idle for that long it may be
        taken_s = drip(connection, b"GET /healthz HTTP/1.1\r\nX-Long: " + b"x" * 1000)
        assert LIMIT_S * 0.8 < taken_s < LIMIT_S + 1
        told(answer_of(connection), "header")


def test_a_connection_that_says_nothing_is_closed(address):
    with socket.create_connection(address) as connection:
        connection.settimeout(LIMIT_S + 3)
        assert connection.recv(1) == b""


def test_a_sender_that_goes_away_is_not_taken_at_half_a_word(settings, store):
    """What had come of the body was taken for the whole."""
    whole = json.dumps({"name": "left"}).encode()
    settings = settings.model_copy(update={"access_log": "off"})
    with bounded(create_app(settings, store), settings) as address:
        with socket.create_connection(address) as connection:
            head = HEAD.replace(b"/v1/recommendations", b"/v1/keys")
            connection.sendall(head + str(len(whole) + 1).encode() + b"\r\n\r\n" + whole)
            time.sleep(0.1)
        time.sleep(0.3)
    assert store.keys.list() == []


@pytest.mark.exhaustive
def test_connections_stay_open_for_longer_than_clients_keep_them(settings, store):
    """They were closed after 5 s, as httpx does: a fuzzer's request met a reset."""
    assert settings.keep_alive_s > 60  # what load balancers wait
    settings = settings.model_copy(update={"keep_alive_s": 2.0, "access_log": "off"})
    with bounded(create_app(settings, store), settings) as address:
        connection = http.client.HTTPConnection(*address, timeout=10)
        for wait_s in (0.0, 1.0, 1.0):
            time.sleep(wait_s)
            connection.request("GET", "/v1/models/x")
            answer = connection.getresponse()
            assert (answer.status, answer.will_close) == (422, False)
            answer.read()
        began = time.monotonic()
        assert connection.sock.recv(1) == b""
        assert 1.5 < time.monotonic() - began < 8.0
