#!/usr/bin/env python3
"""Runs a command on a terminal of 100 columns, and prints its fullest drawing as SVG. It knows the orders that `orchestra run` draws with, and no others.

    scripts/terminal-picture.py COMMAND ... > picture.svg
"""
import html
import os
import pty
import re
import struct
import sys
from fcntl import ioctl
from termios import TIOCSWINSZ

COLUMNS, ROWS = 100, 40
COLORS = {30: "#8b949e", 31: "#ff7b72", 32: "#56d364", 33: "#e3b341", 34: "#79c0ff", 35: "#d2a8ff", 36: "#39c5cf", 90: "#8b949e"}
PLAIN, WIDTH, HEIGHT = "#e6edf3", 8.4, 18
ERASE = re.compile(r"\r(?:\x1b\[J)?\x1b\[K(?:\x1b\[A\x1b\[K)*")
STYLE = re.compile(r"\x1b\[([0-9;]*)m")


def recorded(command):
    """All that it writes to its terminal."""
    child, terminal = pty.fork()
    if child == 0:
        ioctl(0, TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        os.environ["TERM"] = "xterm-256color"
        os.execvp(command[0], command)
    written = b""
    while True:
        try:
            read = os.read(terminal, 1 << 16)
        except OSError:  # Linux says so that the last writer is gone.
            read = b""
        if not read:
            break
        written += read
    os.waitpid(child, 0)
    return written.decode(errors="replace")


def spans(line):
    """Texts of a line with their styles."""
    style, at = "", 0
    for order in [*STYLE.finditer(line), None]:
        text = line[at : order.start() if order else None]
        if text:
            yield text, style
        if order:
            at = order.end()
            for code in (int(code or 0) for code in order[1].split(";")):
                if code == 0:
                    style = ""
                elif code == 1:
                    style += ' font-weight="bold"'
                elif code == 2:
                    style += ' fill-opacity="0.6"'
                elif code in COLORS:
                    style += f' fill="{COLORS[code]}"'


def svg(lines):
    width, height = COLUMNS * WIDTH + 32, len(lines) * HEIGHT + 28
    print(f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}" font-family="ui-monospace, monospace" font-size="14">')
    print(f'<rect width="100%" height="100%" rx="8" fill="#0d1117"/><g fill="{PLAIN}">')
    for row, line in enumerate(lines):
        column = 0
        for text, style in spans(line):
            # Each text has its place and its length: the browser's font may have another width.
            x, length = 16 + column * WIDTH, len(text) * WIDTH
            column += len(text)
            if text.strip():
                print(
                    f'<text xml:space="preserve" x="{x:.1f}" y="{28 + row * HEIGHT}" textLength="{length:.1f}"'
                    f' lengthAdjust="spacingAndGlyphs"{style}>{html.escape(text)}</text>'
                )
    print("</g></svg>")


drawings = [drawing.rstrip("\r\n").split("\r\n") for drawing in ERASE.split(recorded(sys.argv[1:]))]
most = max(map(len, drawings))
fullest = [drawing for drawing in drawings if len(drawing) == most]
svg(fullest[len(fullest) // 2])
