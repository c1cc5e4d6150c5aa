"""Text that people wrote in a file: UTF-8, with or without the mark that some editors put first."""

MARK = b"\xef\xbb\xbf"
OTHERS = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}


class NotUtf8(ValueError):
    """The bytes are no UTF-8; the message says what they are, or where they stop to be it."""


def decode(data: bytes) -> str:
    """The text of `data` without a byte order mark. Raises NotUtf8."""
    if other := OTHERS.get(data[:2]):
        raise NotUtf8(f"{other} by its first two bytes; save it as UTF-8")
    try:
        return data.removeprefix(MARK).decode("utf-8")
    except UnicodeDecodeError as error:
        marked = len(MARK) if data.startswith(MARK) else 0
        raise NotUtf8(f"not UTF-8 at byte {error.start + marked}") from None
