"""Removal of credentials from URIs and texts; all patterns take linear time.

A URI loses its user, password and options. Elsewhere ``***`` replaces the value of a setting whose name says that it is
secret, such as ``password``, ``fs.s3a.secret.key`` or ``sig``.
"""

from __future__ import annotations

import re

_URI = re.compile(r"(?<=[a-z0-9+.-])://((?:(?!://)[^\s\"'<>])*)", re.IGNORECASE)
_LATER = re.compile(r"(?:(?!://)[^\n@]){1,200}@[^\s\"'<>]*")  # the rest of a password with a blank, and the host
_OPTIONS = re.compile(r"[^\s\"'<>]*")
_PORTS = re.compile(r"\d+(?:,[\w.-]+(?::\d+)?)*[,;.)\]}]*")
_BUCKETS, _CONTAINERS = ("s3", "s3a", "s3n"), ("abfs", "abfss", "wasb", "wasbs")

_KEY = r"(?:access|account|api|private|secret|shared)[._-]?(?:access[._-]?)?key(?:[._-]?id)?"
_WORD = r"passw(?:or)?d|passphrase|pwd|secret|credentials?|authorization|signature|(?<![a-z])sig"
_NAME = rf"(?:{_KEY}|{_WORD}|(?<!(?:pad|bos|eos|sep|cls|unk)_)token)"  # other tokens are a tokenizer's
_SPARK = r"spark\.[\w.-]{0,200}?(?:secret|password|token|access[.]?key)[\w.-]{0,200}"  # as spark.redaction.regex
_QUOTED = r"\\+[\"'][^\"'\\\n]*\\*[\"']?|\"(?:[^\"\\\n]|\\.)*\"?|'(?:[^'\\\n]|\\.)*'?"
# If semicolons separate settings, as in JDBC, a value may have blanks.
_BARE = r"(?:[^\s&;\"'<>,)}\]]|[,)}\]](?=[^\s,)}\];&\"']))+(?:[^;&\n\"']{0,200}(?=;))?"
_VALUE = rf"(?!(?:None|null|True|False)\b)(?:{_QUOTED}|{_BARE})"
_SECRETS = [
    re.compile(pattern, re.IGNORECASE | re.MULTILINE)
    for pattern in (
        rf"({_NAME}[ \t]*=[ \t]*){_VALUE}",
        rf"({_NAME}\\*[\"'][ \t]*:[ \t]*){_VALUE}",
        rf"(^[ \t]*(?:- )?(?:[\w.-]{{0,80}}[._-])?{_NAME}:[ \t]+)[^\n]+",
        rf"({_SPARK}(?:\\*[\"'])?(?:[ \t]*[=:,][ \t]*|[ \t]+)){_VALUE}",
        r"(%3a%2f%2f)(?:(?!%2f|%3f)[^\s&\"']){1,200}(?=%40)",
        r"(jdbc:oracle:\w{1,9}:)[^\s/@]{1,99}/[^\s\"']{1,200}(?=@)",
        r"((?<=PRIVATE KEY-----))[^-]+",
        r"((?<!\w))A[KS]IA[A-Z0-9]{16}(?!\w)",
    )
]


def public(uri: str) -> str:
    """Remove a URI's user, password and options; a path stays as it is."""
    scheme, mark, address = uri.partition("://")
    return f"{scheme}://{_place(scheme.lower(), address)}" if mark else uri


def masked(text: str) -> str:
    """Remove the credentials in a text: in URIs, and in settings whose names say that they are secret."""
    for secret in _SECRETS:
        text = secret.sub(r"\1***", text)
    parts, at = list[str](), 0
    for uri in _URI.finditer(text):
        if uri.start() >= at:  # else it is in the options of the URI before
            scheme = re.split(r"[^a-z0-9+.-]", text[max(0, uri.start() - 20) : uri.start()].lower())[-1]
            address, end = uri[1], uri.end()
            hostless = "@" not in address or not {*address.rpartition("@")[2]} & {*"/.:"}  # no host yet
            cut = address[-1:] != ":" and hostless
            if cut and _has_password(scheme, address) and (later := _LATER.match(text, end)):
                address, end = address + later[0], later.end()
            options = _OPTIONS.match(text, end) if "?" in address else None
            parts += [text[at : uri.start()], "://", _place(scheme, address)]
            at = end if options is None else options.end()
    return "".join([*parts, text[at:]])


def _place(scheme: str, address: str) -> str:
    authority = re.split("[/?#]", address, maxsplit=1)[0]
    if "@" in address and _has_password(scheme, address):  # which may hold any of @ / ? #
        address = address.rpartition("@")[2]
    elif "@" in authority and scheme not in _CONTAINERS:
        address = address[authority.rindex("@") + 1 :]
    return address.partition("?")[0]


def _has_password(scheme: str, address: str) -> bool:
    authority = re.split("[/?#]", address, maxsplit=1)[0]
    _, colon, port = authority.partition(":")
    if authority.startswith("[") or not colon:
        return False
    return "@" in port or scheme in _BUCKETS or not _PORTS.fullmatch(port)
