"""Decoding of text files in UTF-8, with or without a byte order mark."""

MARK = b"\xef\xbb\xbf"
OTHERS = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}


class NotUtf8(ValueError):
    """Some bytes are not UTF-8; the message names their encoding or the first invalid byte."""


def decode(data: bytes) -> str:
    """Decode `data` from UTF-8, dropping a byte order mark. Raises NotUtf8."""
    if other := OTHERS.get(data[:2]):
        raise NotUtf8(f"{other} by its first two bytes; save it as UTF-8")
    try:
        return data.removeprefix(MARK).decode("utf-8")
    except UnicodeDecodeError as error:
        marked = len(MARK) if data.startswith(MARK) else 0
        raise NotUtf8(f"not UTF-8 at byte {error.start + marked}") from None
