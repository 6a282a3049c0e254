"""HTTP/1.1 without a connection, held against h11, which others read with."""

from __future__ import annotations

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmark_service.http_connections import MOST_HEAD, AnswerParser, NotHttpError, request_bytes

PLAIN = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello"
CHUNKS = b"HTTP/1.1 200\r\nTransfer-Encoding: chunked\r\n\r\n"
Read = tuple[int, list[tuple[bytes, bytes]], bytes, bool]


def read(pieces: list[bytes], *, bodiless: bool = False) -> Read:
    """Status, headers, body, and whether the connection may be used again, as we read them."""
    answers, waiting = AnswerParser(), iter(pieces)
    answers.expect(bodiless=bodiless)

    def more() -> None:
        if (piece := next(waiting, None)) is None:
            answers.end()
        else:
            answers.feed(piece)

    while (head := answers.head()) is None:
        more()
    body = b""
    while (piece := answers.piece()) != b"":
        if piece is None:
            more()
        else:
            body += piece
    return head.status, list(head.headers), body, head.lasts and answers.clean


def read_by_h11(answer: bytes) -> Read:
    """The same as h11 reads it."""
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=MOST_HEAD)
    connection.send(h11.Request(method="GET", target="/", headers=[("host", "h")]))
    connection.send(h11.EndOfMessage())
    connection.receive_data(answer)
    connection.receive_data(b"")
    body = b""
    while not isinstance(event := connection.next_event(), h11.EndOfMessage):
        if isinstance(event, h11.Response):
            head = event
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
        elif isinstance(event, h11.ConnectionClosed):
            raise h11.RemoteProtocolError("closed")
    last = connection.their_state is h11.DONE and connection.our_state is h11.DONE
    return head.status_code, list(head.headers), body, last and not connection.trailing_data[0]


GOOD = [
    PLAIN,
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nlink: x\r\n\r\n" + PLAIN,
    PLAIN + b"HTTP/1.1 408 Too late\r\n\r\n",
    PLAIN.replace(b"5\r\n", b"5\r\nconnection: Keep-Alive, Close\r\n"),
    PLAIN.replace(b"5\r\n", b"5\r\nX-Spaced:  one\t \r\nx-empty:\r\n"),
    PLAIN.replace(b"/1.1", b"/1.0"),
    CHUNKS + b"5\r\nhello\r\n0\r\n\r\n",
    CHUNKS + b"1;a=b\r\nh\r\n0004\r\nello\r\n000\r\nx-after: 1\r\n\r\n",
    b"HTTP/1.1 204 No Content\r\n\r\n",
    b"HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n",
    b"HTTP/1.1 500 \r\ncontent-length: 0\r\n\r\n",
]
BAD = [
    b"",
    b"hello\r\n\r\n",
    b"HTTP/2 200 OK\r\n\r\n",
    b"HTTP/1.1 2000 OK\r\n\r\n",
    b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
    PLAIN[:-1],
    PLAIN[:30],
    PLAIN.replace(b": 5", b": -5"),
    PLAIN.replace(b": 5", b": 5\r\ncontent-length: 6"),
    PLAIN.replace(b": 5", b": 5x"),
    PLAIN.replace(b": 5", b": 5, 5"),
    PLAIN.replace(b"\r\n", b"\n"),
    PLAIN.replace(b"text/plain", b"text\r\n plain"),
    PLAIN.replace(b"text/plain", b"text\0plain"),
    PLAIN.replace(b"Content-Type", b"Content Type"),
    PLAIN.replace(b"Content-Type:", b"Content-Type"),
    PLAIN.replace(b"text/plain", b"x" * (MOST_HEAD + 100)),
    CHUNKS + b"zz\r\n",
    CHUNKS + b"2\r\nhello\r\n0\r\n\r\n",
    CHUNKS + b"5\r\nhello\r\n",
    CHUNKS + b"1" * (MOST_HEAD + 100),
    CHUNKS + b"0\r\n" + b"x: y\r\n" * MOST_HEAD,
    CHUNKS.replace(b"chunked", b"gzip, chunked") + b"0\r\n\r\n",
    CHUNKS.replace(b"\r\n\r\n", b"\r\ncontent-length: 3\r\n\r\n") + b"5\r\nhello\r\n0\r\n\r\n",
]


@pytest.mark.parametrize("answer", GOOD)
def test_an_answer_is_read_as_h11_reads_it_however_it_comes(answer: bytes) -> None:
    expected = read_by_h11(answer)
    assert read([answer]) == expected
    one_by_one = read([answer[at : at + 1] for at in range(len(answer))])
    # Where nothing comes after the body, what came beside it cannot be told.
    assert one_by_one[:3] == expected[:3]


@pytest.mark.parametrize("answer", BAD)
def test_what_is_no_answer_is_refused_however_it_comes(answer: bytes) -> None:
    with pytest.raises(NotHttpError):
        read([answer])
    with pytest.raises(NotHttpError):
        read([answer[at : at + 997] for at in range(0, len(answer), 997)])


@given(st.lists(st.sampled_from([*GOOD, *BAD[:12]]), min_size=1), st.integers(0, 200), st.binary(max_size=3))
def test_nothing_but_answers_and_refusals_come_of_any_bytes(some: list[bytes], at: int, junk: bytes) -> None:
    mangled = b"".join(some)
    mangled = mangled[:at] + junk + mangled[at + len(junk) :]
    try:
        status, _headers, _body, _lasts = read([mangled])
    except NotHttpError:
        return
    assert 200 <= status <= 999


def test_no_body_follows_an_answer_to_head() -> None:
    status, _headers, body, lasts = read([b"HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n"], bodiless=True)
    assert (status, body, lasts) == (200, b"", False)


def test_without_a_length_the_connections_end_is_the_bodys() -> None:
    assert read([b"HTTP/1.1 200 OK\r\n\r\nuntil ", b"the end"]) == (200, [], b"until the end", False)


def test_one_answer_follows_another_and_none_comes_unasked() -> None:
    answers = AnswerParser()
    for _ in range(2):
        answers.expect()
        answers.feed(PLAIN)
        assert answers.head() is not None and answers.waiting == 5 and not answers.clean
        assert [answers.piece(), answers.piece()] == [b"hello", b""] and answers.clean
    answers.feed(PLAIN[:1])
    assert not answers.clean
    answers.expect()
    with pytest.raises(NotHttpError, match="unasked"):
        answers.head()


def test_a_request_is_what_it_says() -> None:
    made = request_bytes("POST", b"/a?b", [(b"host", b"h"), (b"content-length", b"2"), (b"x", b"")], b"hi")
    assert made == b"POST /a?b HTTP/1.1\r\nhost: h\r\ncontent-length: 2\r\nx: \r\n\r\nhi"


@pytest.mark.parametrize(
    ("target", "header"),
    [
        (b"/a b", (b"host", b"h")),
        (b"/\r\nx: y", (b"host", b"h")),
        (b"/", (b"x", b"1\r\ny: 2")),
        (b"/", (b"x", b"1\n")),
        (b"/", (b"x\r\ny", b"1")),
        (b"/", (b"x", b"\0")),
        (b"/", (b"", b"1")),
        (b"/", (b"x", b"1\r\n")),
    ],
)
def test_a_request_smuggles_nothing(target: bytes, header: tuple[bytes, bytes]) -> None:
    with pytest.raises(NotHttpError):
        request_bytes("GET", target, [header], b"")
