"""Removal of credentials and options from URIs in paths and texts."""

from __future__ import annotations

import re

_CREDENTIALS = re.compile(r"(\b[a-z][a-z0-9+.-]*://)[^\s@?\"']*@")
_OPTIONS = re.compile(r"(\b[a-z][a-z0-9+.-]*://[^\s?\"']*)\?[^\s\"']+")


def public(uri: str) -> str:
    """Remove a URI's credentials (before the last ``@``) and options (after ``?``); paths stay as they are."""
    scheme, mark, place = uri.partition("://")
    if not mark:
        return uri
    host, slash, path = place.partition("?")[0].partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


def masked(text: str) -> str:
    """Remove the credentials and options of all URIs in a text."""
    return _OPTIONS.sub(r"\1", _CREDENTIALS.sub(r"\1", text))
