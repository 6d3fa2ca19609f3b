"""Paths and texts without the credentials and options of URIs."""

from __future__ import annotations

import re

_CREDENTIALS = re.compile(r"(\b[a-z][a-z0-9+.-]*://)[^\s@?\"']*@")
_OPTIONS = re.compile(r"(\b[a-z][a-z0-9+.-]*://[^\s?\"']*)\?[^\s\"']+")


def public(uri: str) -> str:
    """A path as it is; a URI without credentials, which are before the last ``@``, and options, behind the ``?``."""
    scheme, mark, rest = uri.partition("://")
    if not mark:
        return uri
    place, slash, path = rest.partition("?")[0].partition("/")
    return f"{scheme}://{place.rpartition('@')[2]}{slash}{path}"


def masked(text: str) -> str:
    """A text without the credentials and options that URIs in it have."""
    return _OPTIONS.sub(r"\1", _CREDENTIALS.sub(r"\1", text))
