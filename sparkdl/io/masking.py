"""Texts without what is not for everybody's eyes: a page is passed on."""

from __future__ import annotations

import re

_CREDENTIALS = re.compile(r"(\b[a-z][a-z0-9+.-]*://)[^\s@?\"']*@")
_OPTIONS = re.compile(r"(\b[a-z][a-z0-9+.-]*://[^\s?\"']*)\?[^\s\"']+")


def masked(text: str) -> str:
    """A text without the credentials and options that URIs in it have."""
    return _OPTIONS.sub(r"\1", _CREDENTIALS.sub(r"\1", text))
