"""Origins: whose page lets a browser send a request.

Any page may send some, and one whose name its owner lets point at this machine (DNS rebinding) may
also read what is answered. Where no key is asked for, these are told apart by what browsers say.
"""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from tuner_service.errors import OtherSite

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


def refuse_other_hosts(headers: Headers) -> None:
    """Complain of a request that was sent to another name than this machine calls itself (SV940).

    For services that listen on this machine only.
    """
    host = headers.get("host", "")
    if not _is_loopback(host):
        expected = "a request to this machine (`Host`: localhost, 127.0.0.1 or [::1])"
        raise OtherSite(expected=expected, found=f"one to {host[:80] or 'nobody'}")


def refuse_other_sites(headers: Headers) -> None:
    """Complain of a request that a page of another site had a browser send (SV940)."""
    site, origin = headers.get("sec-fetch-site"), headers.get("origin", "")
    if site is not None:
        is_own = site in ("same-origin", "none")
    else:  # old browsers, and all of them over plain http to other machines
        is_own = not origin or origin.partition("://")[2] == headers.get("host")
    if not is_own:
        expected = "a request of a page of this service, or of no page"
        raise OtherSite(expected=expected, found=f"one of {(origin or site or '')[:80]}")


@lru_cache(maxsize=64)
def _is_loopback(host: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
