"""The web application of the dashboard: addresses, sessions, safe headers, live pages."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from benchmark_runner.terminal import safe
from sandboxes.web_gate import BodyPace, RequestGate
from valkyrie import __version__
from valkyrie.dashboard import charts, pages
from valkyrie.dashboard.pages import Page
from valkyrie.dashboard.sessions import COOKIE, Session, Sessions
from valkyrie.errors import UnknownError, UserError, ValkyrieError
from valkyrie.report.formats import moment, short_id, state_word
from valkyrie.tracker.local import LocalTracker
from valkyrie.views import ResumeRequest, RetryRequest, StopRequest, UpdateRequest

log = logging.getLogger("valkyrie.dashboard")
HERE = Path(__file__).parent
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types valkyrie"
)
FILE_POLICY = "default-src 'none'; sandbox; frame-ancestors 'none'"
"""What an agent left is downloaded, and does nothing where a browser shows it all the same."""
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # with none at all, forms of our own pages come from nowhere
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
STATIC = {"dashboard.css": "text/css", "dashboard.js": "text/javascript", "icon.svg": "image/svg+xml"}
FORM_LIMIT = 16 << 10
MOST_STREAMS = 32
LOOK_EVERY_S = 0.5
KEEP_ALIVE_S = 15.0
_AGO = re.compile(r"(<time [^>]*>)[^<]*")
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]", "::1")


# Templates.


def relative(epoch: float | None, now: float | None = None) -> str:
    """Return how long ago a moment was, in one unit."""
    if epoch is None:
        return "—"
    seconds = max(0.0, (time.time() if now is None else now) - epoch)
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length:.0f} {unit} ago"
    return "just now" if seconds < 5 else f"{seconds:.0f} s ago"


def time_tag(epoch: float | None) -> Markup:
    """Return a moment as people read it, with the exact time on hover."""
    if epoch is None:
        return Markup("—")
    return Markup('<time data-epoch="{:.3f}" title="{}">{}</time>').format(
        epoch, moment(epoch), relative(epoch)
    )


def make_templates() -> Environment:
    """Return the templates; all that is filled in is escaped."""
    found = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters.update(
        when=time_tag, shorten=charts.shorten, short_id=short_id, word=state_word, safe_text=safe
    )
    found.globals.update(version=__version__, asset=_asset, run_path=pages.run_path)
    found.globals["parts"] = found.get_template("parts.html").module
    return found


def _asset(name: str) -> str:
    """Return the address of a file of ours, which changes with its content."""
    return f"/static/{name}?{hashlib.sha256((HERE / 'static' / name).read_bytes()).hexdigest()[:12]}"


def _mark(html: str) -> str:
    """Return what a fragment is known by; how long ago things were is the browser's to tell."""
    return hashlib.sha256(_AGO.sub(r"\1", html).encode()).hexdigest()[:16]


# Who may ask.


class LocalGate:
    """Admit requests that were meant for this machine, and forms of our own pages."""

    def __init__(self, host: str) -> None:
        self._names = {*_LOOPBACK, host}

    async def admit(self, scope: Scope, headers: Headers) -> None:
        host = headers.get("host", "")
        if urlsplit(f"//{host}").hostname not in {name.strip("[]") for name in self._names}:
            raise HTTPException(400, "This dashboard answers on this machine's own address only.")
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != host:
            raise HTTPException(403, "Pages of other sites may not use this dashboard.")
        if scope["method"] == "POST" and headers.get("sec-fetch-site", "same-origin") != "same-origin":
            raise HTTPException(403, "Pages of other sites may not use this dashboard.")


class SafeHeaders:
    """Put the headers on every answer that keep pages from loading or running anything but ours."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                present = {name for name, _ in message.get("headers", ())}
                more = [
                    (name.encode(), value.encode())
                    for name, value in HEADERS.items()
                    if name.encode() not in present
                ]
                message = {**message, "headers": [*message.get("headers", ()), *more]}
            await send(message)

        await self._app(scope, receive, sending)


# Changes of the store, for pages that stay current.


class ChangeFeed:
    """Looks at the store in one thread, and wakes every page that waits."""

    def __init__(self, changes: Callable[[], Iterator[None]]) -> None:
        self._changes = changes
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake: asyncio.Event = asyncio.Event()
        self._ending = threading.Event()
        self.streams = 0

    @property
    def ended(self) -> bool:
        return self._ending.is_set()

    def start(self) -> None:
        """Begin to look, from the running loop."""
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._look, name="dashboard-changes", daemon=True).start()

    def _look(self) -> None:
        try:
            for _ in self._changes():
                if self._ending.is_set():
                    return
                self._tell()
        except (ValkyrieError, OSError) as error:
            log.warning("the store cannot be watched: %s", error)

    def _tell(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._ring)

    def _ring(self) -> None:
        wake, self._wake = self._wake, asyncio.Event()
        wake.set()

    async def wait(self, seconds: float) -> None:
        """Return after the next change, or after so many seconds."""
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            return

    def close(self) -> None:
        """Let every page go."""
        self._ending.set()
        self._ring()


# The application.


class Dashboard:
    """Pages of one store, for the browsers its sessions let in."""

    def __init__(self, tracker: LocalTracker, sessions: Sessions, host: str = "127.0.0.1") -> None:
        self._tracker = tracker
        self._sessions = sessions
        self._templates = make_templates()
        self.feed = ChangeFeed(lambda: tracker.store.changes(LOOK_EVERY_S))
        gate = LocalGate(host)
        self.app = Starlette(
            routes=[
                Route("/static/{name}", self._static),
                Route("/open", self._open),
                Route("/close", self._close, methods=["POST"]),
                Route("/live", self._live),
                Route("/runs/{ref}/file", self._file),
                Route("/runs/{ref}/{action}", self._act, methods=["POST"]),
                Route("/{path:path}", self._page),
            ],
            middleware=[
                Middleware(SafeHeaders),
                Middleware(
                    RequestGate,
                    admit=gate.admit,
                    answer=lambda _scope, error: self._refuse(error),
                    limit=lambda _scope: FORM_LIMIT,
                    pace=BodyPace(),
                ),
            ],
            exception_handlers={HTTPException: self._tell, ValkyrieError: self._tell},
            lifespan=self._lifespan,
        )

    @asynccontextmanager
    async def _lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        self.feed.start()
        try:
            yield
        finally:
            self.feed.close()

    def _find(self, path: str, query: Mapping[str, list[str]]) -> Page:
        """Return what is at an address."""
        one = {name: values[-1] for name, values in query.items()}
        match [part for part in path.split("/") if part]:
            case []:
                return pages.runs_page(self._tracker, one)
            case ["jobs"]:
                return pages.jobs_page(self._tracker, one)
            case ["jobs", ref]:
                return pages.job_page(self._tracker, ref, one)
            case ["runs", ref]:
                return pages.run_page(self._tracker, ref, one)
            case ["runs", ref, "trial"]:
                return pages.trial_page(self._tracker, ref, one)
            case ["compare"]:
                return pages.compare_page(self._tracker, query.get("run", []), one)
            case ["operate"]:
                return pages.queue_page(self._tracker)
        raise UnknownError("There is no page at this address.")

    def _render(self, page: Page, session: Session, path: str, *, block: str | None = None) -> str:
        values = {"live": False, **page.values, "session": session, "path_now": path, "messages": ()}
        template = self._templates.get_template(page.template)
        if block is not None:
            context = template.new_context(values)
            return "".join(template.blocks[block](context))
        return template.render(**{**values, "messages": session.take_messages()})

    def _session(self, request: Request) -> Session:
        session = self._sessions.find(request.cookies.get(COOKIE))
        if session is None:
            raise HTTPException(
                401, "This browser has no session. `valk dashboard` prints a link that opens one."
            )
        return session

    async def _page(self, request: Request) -> Response:
        session = self._session(request)
        path = request.url.path
        query = parse_qs(request.url.query, keep_blank_values=False, max_num_fields=100)

        def work() -> str:
            return self._render(self._find(path, query), session, path)

        return Response(await run_in_threadpool(work), media_type="text/html")

    async def _live(self, request: Request) -> Response:
        """Send a page's changing part again whenever it changed."""
        session = self._session(request)
        wanted = urlsplit(request.query_params.get("page", "/"))
        query = parse_qs(wanted.query, max_num_fields=100)
        if self.feed.streams >= MOST_STREAMS:
            raise HTTPException(503, "Too many pages are live; close some.")

        def work() -> str:
            return self._render(self._find(wanted.path, query), session, wanted.path, block="live")

        async def events() -> AsyncIterator[bytes]:
            self.feed.streams += 1
            seen = request.headers.get("last-event-id", "")
            try:
                while self._sessions.find(request.cookies.get(COOKIE)) is not None:
                    html = await run_in_threadpool(work)
                    mark = _mark(html)
                    if mark != seen:
                        seen = mark
                        yield f"id: {mark}\nevent: fragment\ndata: {json.dumps(html)}\n\n".encode()
                    else:
                        yield b": nothing new\n\n"
                    if self.feed.ended:
                        return
                    await self.feed.wait(KEEP_ALIVE_S)
            except ValkyrieError as error:
                yield f"event: gone\ndata: {json.dumps(str(error))}\n\n".encode()
            finally:
                self.feed.streams -= 1

        return StreamingResponse(events(), media_type="text/event-stream")

    async def _static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in STATIC:
            raise HTTPException(404, "There is no page at this address.")
        return Response(
            (HERE / "static" / name).read_bytes(),
            media_type=STATIC[name],
            headers={"cache-control": "private, max-age=31536000, immutable"},
        )

    async def _open(self, request: Request) -> Response:
        """Turn the link that was printed into a session."""
        cookie = self._sessions.open(request.query_params.get("token", ""))
        if cookie is None:
            raise HTTPException(
                401, "This link was used before, or is too old. `valk dashboard` prints another."
            )
        answer = RedirectResponse(self._next(request.query_params.get("next", "/")), 303)
        answer.set_cookie(COOKIE, cookie, httponly=True, samesite="strict", path="/")
        return answer

    @staticmethod
    def _next(said: str) -> str:
        """Return where to go on: an address of ours, never another site's."""
        parts = urlsplit(said)
        ours = said.startswith("/") and not said.startswith(("//", "/\\")) and not parts.netloc
        return said if ours and said.isprintable() else "/"

    async def _close(self, request: Request) -> Response:
        session = self._session(request)
        await self._form(request, session)
        self._sessions.close(request.cookies.get(COOKIE))
        answer = Response(
            "Closed. `valk dashboard` prints a link that opens a new session.", media_type="text/plain"
        )
        answer.delete_cookie(COOKIE, path="/")
        return answer

    async def _form(self, request: Request, session: Session) -> dict[str, str]:
        form = {
            name: values[-1]
            for name, values in parse_qs((await request.body()).decode("utf-8", "replace")).items()
        }
        if not session.owns(form.get("form_token", "")):
            raise HTTPException(403, "This form is not from a page of your session; open the page again.")
        return form

    async def _act(self, request: Request) -> Response:
        """Do what a form asks for, and show the run again."""
        session = self._session(request)
        form = await self._form(request, session)
        ref, action = request.path_params["ref"], request.path_params["action"]

        def work() -> str:
            run_id = self._tracker.fetch(ref).id
            session.messages.append(self._do(run_id, action, form))
            return run_id

        try:
            run_id = await run_in_threadpool(work)
        except UserError as error:
            session.messages.append(str(error))
            run_id = ref
        return RedirectResponse(f"/runs/{quote(run_id, safe='')}", 303)

    def _do(self, run_id: str, action: str, form: Mapping[str, str]) -> str:
        if action == "stop":
            self._tracker.stop(run_id, StopRequest(force=form.get("force") == "1"))
            return "The run stops; trials under way finish first unless they were told otherwise."
        if action == "resume":
            self._tracker.resume(run_id, ResumeRequest())
            return "The run goes on."
        if action == "retry":
            self._tracker.retry(run_id, RetryRequest())
            return "Trials that ended in an error are tried again."
        if action == "concurrency" and form.get("concurrency", "").isdecimal():
            self._tracker.update(run_id, UpdateRequest(concurrency=int(form["concurrency"][:6])))
            return f"At most {int(form['concurrency'][:6])} trials at once from now on."
        raise UserError("There is no such action, or it lacks a number.")

    async def _file(self, request: Request) -> Response:
        """Send one kept file as a download, whatever it says it is."""
        self._session(request)
        query = dict(request.query_params)
        name, pieces, count = await run_in_threadpool(
            pages.open_file, self._tracker, request.path_params["ref"], query
        )
        plain = quote(name.rsplit("/", 1)[-1], safe="")
        return StreamingResponse(
            pieces,
            media_type="application/octet-stream",
            headers={
                "content-disposition": f"attachment; filename*=UTF-8''{plain}",
                "content-length": str(count),
                "content-security-policy": FILE_POLICY,
            },
        )

    async def _tell(self, _request: Request, error: Exception) -> Response:
        return self._refuse(error)

    def _refuse(self, error: Exception) -> Response:
        said: object = error
        if isinstance(error, HTTPException):
            status, said = error.status_code, error.detail
        elif isinstance(error, UserError):
            status = 404 if isinstance(error, UnknownError) else 400
        else:
            status = 503
        shown = {"status": status, "said": safe(said, keep_lines=True), "title": "Not shown"}
        html = self._templates.get_template("problem.html").render(shown)
        return Response(html, status, media_type="text/html")
