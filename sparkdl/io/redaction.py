"""What may be shown of a path or URI."""

from __future__ import annotations


def public(uri: str) -> str:
    """A path as it is; a URI without credentials, which are before the last ``@``, and options, behind the ``?``."""
    scheme, mark, rest = uri.partition("://")
    if not mark:
        return uri
    place, slash, path = rest.partition("?")[0].partition("/")
    return f"{scheme}://{place.rpartition('@')[2]}{slash}{path}"
