"""Who may ask the console: whoever has its token, under an address that nobody else can choose.

A page of another site can make a browser ask this one. It lacks the cookie (SameSite=Strict); where it has been made to
look like this site (DNS rebinding), its name stands in the Host header and is refused; and a changing request whose
Origin is another one is refused too. Nothing is answered without the token, errors and static files included.
"""

import hashlib
import hmac
import ipaddress
import json
import secrets
from collections.abc import Iterable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_TOKEN_BYTES = 24
_READING = frozenset({"GET", "HEAD"})
_NAMES = frozenset({"localhost"})
HEADERS = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


def new_token() -> str:
    """Return a secret that nobody can guess."""
    return secrets.token_urlsafe(_TOKEN_BYTES)


def cookie_name(token: str) -> str:
    """Return the cookie's name, another for each console: browsers keep one jar for all ports of a host."""
    return f"weft-{hashlib.sha256(token.encode()).hexdigest()[:12]}"


def host_of(header: str) -> str:
    """Return the name in a Host header without its port, in lower case."""
    name = header.strip().lower()
    if name.startswith("["):
        return name[1:].partition("]")[0]
    return name.rpartition(":")[0] if name.count(":") == 1 else name


class ConsoleGuard:
    """Stands before the whole application."""

    def __init__(self, app: ASGIApp, token: str, names: Iterable[str] = ()) -> None:
        """Let in who knows `token`; besides addresses and localhost, `names` are this machine's."""
        self._app, self._token, self._cookie = app, token, cookie_name(token)
        self._names = _NAMES | {name.lower() for name in names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or pass on; the headers that keep a browser strict go with every answer."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def strict(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        answer = self._refused(scope)
        await (self._app if answer is None else answer)(scope, receive, strict)

    def _refused(self, scope: MutableMapping[str, Any]) -> Response | None:
        """Return what is answered in place of the application; nothing where the request may go on."""
        headers = Headers(scope=scope)
        if not self._is_ours(host_of(headers.get("host", ""))):
            return _no(scope, "this host name is not the console's; open it by the address that weft ui printed")
        given = dict(parse_qsl(scope["query_string"].decode("latin-1")))
        if scope["method"] in _READING and "token" in given and self._is_token(given["token"]):
            return self._let_in(scope["path"], given)
        if not (self._has_cookie(headers) or self._has_bearer(headers)):
            return _no(scope, "the token is missing or wrong; open the URL that weft ui or weft cluster up printed")
        origin = headers.get("origin")
        if scope["method"] not in _READING and origin is not None:
            # Browsers say where a changing request comes from, and pages cannot change that.
            scheme, _, host = origin.partition("://")
            if scheme not in ("http", "https") or host.lower() != headers.get("host", "").lower():
                return _no(scope, "the request comes from a page of another site")
        return None

    def _is_ours(self, name: str) -> bool:
        if name in self._names:
            return True
        try:
            # Nobody can point the name of a site of theirs at us when there is no name.
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    def _let_in(self, path: str, given: dict[str, str]) -> Response:
        """Put the token into a cookie and out of the address."""
        rest = urlencode({name: value for name, value in given.items() if name != "token"})
        # A path such as //elsewhere would lead to another site.
        answer = RedirectResponse("/" + path.lstrip("/\\") + (f"?{rest}" if rest else ""), status_code=303)
        answer.set_cookie(self._cookie, self._token, httponly=True, samesite="strict", path="/")
        return answer

    def _has_cookie(self, headers: Headers) -> bool:
        try:
            found = SimpleCookie(headers.get("cookie", "")).get(self._cookie)
        except CookieError:
            return False
        return found is not None and self._is_token(found.value)

    def _has_bearer(self, headers: Headers) -> bool:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and self._is_token(given.strip())

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(errors="replace"), self._token.encode())


def _no(scope: MutableMapping[str, Any], text: str) -> Response:
    # Programs ask there; everywhere else a person reads the answer.
    if scope["path"].startswith(("/api/", "/metrics")):
        return Response(json.dumps({"error": text}), 403, media_type="application/json")
    return PlainTextResponse(f"{text}\n", 403)
