"""The message in a line of a log, and when it was said, whatever wrote the line. Pure.

The kernel's device, dmesg with any of its options and in any language, journald in each of its formats, syslog as RFC
3164 and 5424 write it, Talos, and the streams of containers (CRI, Docker) that print one of these. Only what the
kernel itself has said counts: a line that another program wrote is none, so that nobody takes a node out by logging a
text. For the same reason what a container prints counts only where it stands as a log of the kernel writes it.
"""

import datetime
import json
import re
from typing import Any

# /dev/kmsg: priority, sequence, microseconds, flags; then the message (Documentation/ABI/testing/dev-kmsg).
_KMSG = re.compile(r"(\d+),\d+,(-?\d+),[^;]*;")
_FACILITIES = (0, 1)
"""The kernel's own messages, and what a person writes into the device (a drill); services write as others."""
_PRIORITY = re.compile(r"<(\d{1,3})>\s*")
_LEVEL = r"(?:emerg|alert|crit|err|error|warn|warning|notice|info|debug)"
_NAMED_LEVEL = re.compile(rf"(?:\S*[^\s:]: )?(\w+)\s*:\s*{_LEVEL}\s*:\s+")
_STEP = r"<\s*[+-]?\d+\.\d+\s*>"
_CLOCK = r"\d\d:\d\d:\d\d"
_ISO = rf"\d{{4}}-\d\d-\d\d[T ]{_CLOCK}(?:[.,]\d+)?(?:\s?(?:Z|[+-]\d\d:?\d\d))?"
_WORD = r"[^\W\d_]+\.?"
_MONTH = rf"(?:{_WORD}|\d{{1,2}}[월月])"
# dmesg, by its options: seconds since the boot, steps, and dates in the language of whoever asked.
_BRACKETS = re.compile(
    rf"\[\s*(?:[+-]?\d+\.\d+(?:\s*{_STEP})?|{_STEP}|{_WORD}\s+{_MONTH}\s+\d{{1,2}}\s+{_CLOCK}\s+\d{{4}}(?:\s*{_STEP})?"
    rf"|{_ISO}|{_MONTH}\s?\d{{1,2}}\s\d\d:\d\d)\s*\]:?\s*(?:\[\s*[TC]\d+\]\s*)?"
)
_DATED = re.compile(
    rf"(?:{_ISO}"
    rf"|(?:{_WORD}\s+)?\d{{4}}-\d\d-\d\d {_CLOCK}(?:\.\d+)? (?:[A-Z]{{1,5}}|[+-]\d\d(?:\d\d)?)"
    rf"|(?:\d{{4}} )?(?:{_WORD}\s+)?{_MONTH}\s+\d{{1,2}} (?:\d{{4}} )?{_CLOCK}(?:\.\d+)?(?: \d{{4}})?"
    r"|\d{9,11}\.\d{3,9})\s+"
)
_STREAM = re.compile(rf"{_ISO} std(?:out|err) [FP] ")
_RFC5424 = re.compile(r'1 \S+ \S+ (\S+) \S+ \S+ (?:-|(?:\[(?:[^\]"]|"(?:[^"\\]|\\.)*")*\])+) ?\ufeff?')
# A host never ends with a colon: a program's name would.
_TAG = re.compile(rf"(?:(?!\S*:\s)\S+\s+)?(?:(?:kern|user)\.{_LEVEL}\s+)?([^\s:\[\]]+)(?:\[\d+\])?:\s+")
_KERNEL = ("kernel", "vmunix")
_COLOURS = re.compile(r"\x1b\[[\d;]*m")
_DMESG_JSON = re.compile(r'\s*"msg"\s*:\s*("(?:[^"\\]|\\.)*"),?\s*')
_WRAPPED = re.compile(r"\s*(?:\\x0a|#012|\n)\s*")
"""How a message of several lines is written in one: by the device, by rsyslog, by the journal."""


def kernel_message(line: str) -> str | None:
    """Return what the kernel said in a line of a log; nothing where somebody else did, or it is no message."""
    line = _COLOURS.sub("", line).rstrip("\r\n").lstrip("\x1e\ufeff").removeprefix("data: ")
    if found := _DMESG_JSON.fullmatch(line):
        return _one_line(json.loads(found[1], strict=False))
    if line.startswith("{") and (entry := _json(line)) is not None:
        return _of_json(entry)
    # Empty, or a continuation of a record: a key of the device, a wrapped line.
    message = None if line[:1] in ("", " ", "\t") else _of_text(line)
    return None if message is None else _one_line(message)


def _of_text(line: str) -> str | None:  # noqa: PLR0911 - one for each way of writing it
    if found := _KMSG.match(line):
        return line[found.end() :] if int(found[1]) >> 3 in _FACILITIES else None
    if found := _STREAM.match(line):
        return _printed(line[found.end() :])
    if found := _PRIORITY.match(line):
        if int(found[1]) >> 3 not in _FACILITIES:
            return None
        line = line[found.end() :]
        if found := _RFC5424.match(line):
            return _bare(line[found.end() :]) if found[1] in _KERNEL else None
    if found := _NAMED_LEVEL.match(line):
        if found[1] not in ("kern", "user"):
            return None
        line = line[found.end() :]
    if found := _DATED.match(line):
        rest, by_dmesg = line[found.end() :], "," in found[0]
        if (tag := _TAG.match(rest)) is not None and tag[1] in _KERNEL:
            return _bare(rest[tag.end() :])
        # dmesg --time-format iso: a comma before the fraction, and no host; everybody else names the program.
        return _bare(rest) if by_dmesg else None
    return _bare(line)


def _bare(message: str) -> str:
    found = _BRACKETS.match(message)
    if found is None:
        return message
    message = message[found.end() :]
    # journalctl -o short-monotonic puts host and program behind the time.
    return message[tag.end() :] if (tag := _TAG.match(message)) and tag[1] in _KERNEL else message


def _printed(line: str) -> str | None:
    """Return the kernel's message in what a container printed: only a line that is written as a log of the kernel."""
    as_log = line.startswith("{") or any(
        each.match(line) for each in (_KMSG, _PRIORITY, _NAMED_LEVEL, _BRACKETS, _DATED)
    )
    return kernel_message(line) if as_log else None


def _one_line(message: str) -> str:
    return _WRAPPED.sub(" ", message.strip())


def _json(line: str) -> dict[str, Any] | None:
    try:
        entry: Any = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) else None


def _of_json(entry: dict[str, Any]) -> str | None:
    """Return the message of an entry of the journal as journalctl -o json writes it, or of a container's stream."""
    if isinstance(printed := entry.get("log"), str) and "stream" in entry:
        return _printed(printed)
    if entry.get("_TRANSPORT", entry.get("SYSLOG_IDENTIFIER")) != "kernel":
        return None
    message = entry.get("MESSAGE")
    if isinstance(message, list):
        # What is not UTF-8 comes as numbers.
        octets = [each for each in message if each in range(256)]
        message = bytes(octets).decode("utf-8", "replace")
    return _one_line(_bare(message)) if isinstance(message, str) else None


_UP = re.compile(r"(?:<\d+>)?(?:\w+\s*:\s*\w+\s*:\s+)?\[\s*(\d+)\.(\d{3})\d*")
_ISO_PARTS = re.compile(rf"(\d{{4}}-\d\d-\d\d)[T ]({_CLOCK})(?:[.,](\d{{1,6}})\d*)?(?:\s?(Z|UTC|GMT|[+-]\d\d:?\d\d))?")
_DAY_PARTS = re.compile(
    rf"(?:(\d{{4}}) )?\b([A-Z][a-z]{{2}})\s+(\d{{1,2}}) (?:(\d{{4}}) )?({_CLOCK})(?:\.\d+)?(?: (\d{{4}}))?"
)
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_HEAD = 120
_DAY = datetime.timedelta(days=1)


def said_at_ms(line: str, now_ms: int, up_ms: int, zone: datetime.tzinfo = datetime.UTC) -> int | None:  # noqa: PLR0911 - by format
    """Return when a line was said, as milliseconds since 1970, where it tells.

    `up_ms` is the time since the boot that seconds since the boot count from; `zone` is that of times without one.
    """
    line = _COLOURS.sub("", line).lstrip("\x1e\ufeff")
    if line.startswith(("{", "data: {")):
        entry = _json(line.removeprefix("data: ")) or {}
        stamp = str(entry.get("__REALTIME_TIMESTAMP", entry.get("_SOURCE_REALTIME_TIMESTAMP", "")))
        if stamp.isdigit():
            return int(stamp) // 1000
        return said_at_ms(str(entry["time"]), now_ms, up_ms, zone) if "time" in entry else None
    if found := _KMSG.match(line):
        return now_ms - up_ms + int(found[2]) // 1000
    if found := _UP.match(line):
        return now_ms - up_ms + int(found[1]) * 1000 + int(found[2])
    head = line[:_HEAD]
    try:
        if found := _ISO_PARTS.search(head):
            text = f"{found[1]}T{found[2]}.{(found[3] or '0').ljust(6, '0')}"
            named = {"Z": "+00:00", "UTC": "+00:00", "GMT": "+00:00"}.get(found[4] or "", found[4] or "")
            at = datetime.datetime.fromisoformat(text + named)
            return round((at if at.tzinfo else at.replace(tzinfo=zone)).timestamp() * 1000)
        if (found := _DAY_PARTS.search(head)) and found[2] in _MONTHS:
            return _of_day(found, datetime.datetime.fromtimestamp(now_ms / 1000, zone))
    except ValueError:
        pass  # the 30th of February, the 25th hour
    return None


def _of_day(found: re.Match[str], now: datetime.datetime) -> int:
    """Return the time of a date that may lack its year: the last such day, give or take a clock that runs ahead."""
    year = next((int(each) for each in (found[1], found[4], found[6]) if each), None)
    clock = datetime.time.fromisoformat(found[5])
    month, day = _MONTHS.index(found[2]) + 1, int(found[3])
    at = datetime.datetime.combine(datetime.date(year or now.year, month, day), clock, now.tzinfo)
    if year is None and at > now + _DAY:
        at = at.replace(year=at.year - 1)
    return round(at.timestamp() * 1000)
