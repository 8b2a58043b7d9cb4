"""The message in a line of a log, whatever wrote the line: the kernel's device, dmesg, journald or syslog. Pure.

Only what the kernel itself has said counts. A line of syslog or of the journal that another program wrote is none, so
that nobody takes a node out by logging a text.
"""

import json
import re
from typing import Any

# /dev/kmsg: priority, sequence, microseconds, flags; then the message (Documentation/ABI/testing/dev-kmsg).
_KMSG = re.compile(r"(\d+),\d+,-?\d+,[^;]*;")
_DEVICE_FACILITIES = (0, 1)
"""The kernel's own messages, and what a person writes into the device (a drill); services write as others."""
_LEVEL = re.compile(r"<(\d{1,3})>\s*")
_NAMED_LEVEL = re.compile(r"(\w+)\s*:(emerg|alert|crit|err|warn|notice|info|debug)\s*: ")
_BRACKETS = re.compile(
    r"\[\s*(?:\d+\.\d+|[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4})\]\s?(?:\[\s*[TC]\d+\]\s?)?"
)
_MONOTONIC = re.compile(r"\S+ kernel: ")
# dmesg --time-format iso: a comma before the fraction, and no host; journald and syslog write a point.
_ISO = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d,\d+(?:Z|[+-]\d\d:?\d\d)\s+")
_SYSLOG = re.compile(
    r"(?:[A-Z][a-z]{2} {1,2}\d{1,2} (?:\d{4} )?\d\d:\d\d:\d\d(?:\.\d+)?"
    r"|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[,.\d]*(?:Z|[+-]\d\d:?\d\d)?)"
    r"\s+\S+\s+([^\s:\[]+)(?:\[\d+\])?:\s"
)


def kernel_message(line: str) -> str | None:  # noqa: PLR0911 - one for each way of writing it
    """Return what the kernel said in a line of a log; nothing where somebody else did, or it is no message."""
    line = line.rstrip("\r\n")
    if line.startswith('{"'):
        return _of_json(line)
    if line[:1] in ("", " ", "\t"):
        # Empty, or a continuation of a record: a key of the device, a wrapped line.
        return None
    if found := _KMSG.match(line):
        return line[found.end() :] if int(found[1]) >> 3 in _DEVICE_FACILITIES else None
    if found := _LEVEL.match(line):
        line = line[found.end() :]
    if found := _ISO.match(line):
        return line[found.end() :]
    if found := _SYSLOG.match(line):
        return _bare(line[found.end() :]) if found[1] == "kernel" else None
    if found := _NAMED_LEVEL.match(line):
        if found[1] not in ("kern", "user"):
            return None
        line = line[found.end() :]
    return _bare(line)


def _bare(message: str) -> str:
    found = _BRACKETS.match(message)
    if found is None:
        return message
    message = message[found.end() :]
    # journalctl -o short-monotonic puts host and program behind the time.
    return message[host.end() :] if (host := _MONOTONIC.match(message)) else message


def _of_json(line: str) -> str | None:
    """Return the message of an entry of the journal as journalctl -o json writes it."""
    try:
        entry: Any = json.loads(line)
    except ValueError:
        return None
    if not isinstance(entry, dict) or entry.get("_TRANSPORT", entry.get("SYSLOG_IDENTIFIER")) != "kernel":
        return None
    message = entry.get("MESSAGE")
    if isinstance(message, list):
        # What is not UTF-8 comes as numbers.
        octets = [each for each in message if each in range(256)]
        message = bytes(octets).decode("utf-8", "replace")
    return _bare(message) if isinstance(message, str) else None
