"""Running text out of manual pages: what a reader would read, without markup, code and tables.

paragraphs(source) takes a page written with the man(7) macros and returns its paragraphs, one string each, white space
collapsed. It needs no roff installed. It is not a formatter: text in no-fill mode (code), tables, equations, macro
definitions and conditionals are left out, since they are no language. Pages in mdoc(7) give None.
"""

import re

# Glyphs by their two-character or longer names, as in \(xx and \[xx].
GLYPHS = {
    "aq": "'", "dq": '"', "lq": "“", "rq": "”", "oq": "‘", "cq": "’", "Bq": "„", "bq": "‚", "Fo": "«", "Fc": "»",
    "fo": "‹", "fc": "›", "bu": "•", "em": "—", "en": "–", "hy": "‐", "mi": "−", "co": "©", "rg": "®", "tm": "™",
    "ha": "^", "ti": "~", "rs": "\\", "ga": "`", "aa": "´", "mu": "×", "di": "÷", "+-": "±", "**": "*", "pl": "+",
    "->": "→", "<-": "←", "<=": "≤", ">=": "≥", "!=": "≠", "==": "≡", "ss": "ß", "AE": "Æ", "ae": "æ", "OE": "Œ",
    "oe": "œ", "/O": "Ø", "/o": "ø", "oA": "Å", "oa": "å", "-D": "Ð", "Sd": "ð", "TP": "Þ", "Tp": "þ", "/L": "Ł",
    "/l": "ł", "de": "°", "sc": "§", "ps": "¶", "12": "½", "14": "¼", "34": "¾", "S1": "¹", "S2": "²", "S3": "³",
    "r!": "¡", "r?": "¿", "mc": "µ", "*m": "μ", "*p": "π", "*a": "α", "*b": "β", "Do": "$", "Eu": "€", "eu": "€",
    "Po": "£", "ct": "¢", "at": "@", "sh": "#", "sl": "/", "or": "|", "ba": "|", "lB": "[", "rB": "]", "lC": "{",
    "rC": "}", "la": "⟨", "ra": "⟩", "if": "∞", "dg": "†", "dd": "‡", "OK": "✓", "sq": "□", "ci": "○",
}  # fmt: skip
# Accented letters are an accent's sign and a letter: \(:a, \('e, \(,c.
ACCENTS = {"'": "\u0301", "`": "\u0300", "^": "\u0302", "~": "\u0303", ":": "\u0308", ",": "\u0327", "v": "\u030c", "o": "\u030a"}
STRINGS = {"lq": "“", "rq": "”", "R": "®", "Tm": "™", "Aq": "'"}

# One escape sequence, tried in this order; what is not named here is dropped with its one character.
ESCAPE = re.compile(
    r"""\\(?:
      (?P<comment>["\#].*) |
      (?P<font>[fFmMgY](?:\[[^\]]*\]|\(..|.)) |
      (?P<size>s(?:[-+]?\[[^\]]*\]|[-+]?'[^']*'|[-+]?\(\d\d|[-+]?[0-9])) |
      (?P<string>\*(?:\[[^\]]*\]|\(..|.)) |
      (?P<register>n[-+]?(?:\[[^\]]*\]|\(..|.)) |
      (?P<quoted>[bCDhHlLNoRSvwxXZ]'[^']*') |
      (?P<glyph>\[[^\]]*\]|\(..) |
      (?P<mark>[kz].) |
      (?P<one>.)
    )|\\$""",
    re.VERBOSE,
)
ONE = {"-": "-", "e": "\\", "\\": "\\", " ": " ", "~": " ", "0": " ", "t": " ", "'": "´", "`": "`", ".": "."}

FONT_WORDS = {"B", "I", "SM", "SB"}  # arguments joined by spaces
FONT_PAIRS = {"BR", "RB", "IR", "RI", "BI", "IB"}  # arguments joined without
BREAKS = {"P", "PP", "LP", "sp", "TP", "HP", "TQ", "RS", "RE", "bp", "br"}
HEADINGS = {"SH", "SS"}
SKIPPED_UNTIL = {"TS": "TE", "EQ": "EN", "nf": "fi", "EX": "EE", "de": ".", "de1": ".", "am": ".", "ig": ".", "SY": "YS",
                 "PS": "PE"}  # fmt: skip
CJK = re.compile(r"[\u3000-\u30ff\u3400-\u9fff\uff00-\uffef]")


def _glyph(name):
    import unicodedata

    name = name[1:-1] if name.startswith("[") else name[1:]
    if name in GLYPHS:
        return GLYPHS[name]
    if re.fullmatch(r"u[0-9A-F]{4,6}", name):
        return chr(int(name[1:], 16)) if int(name[1:], 16) < 0x110000 else ""
    if len(name) == 2 and name[0] in ACCENTS and name[1].isalpha():
        return unicodedata.normalize("NFC", name[1] + ACCENTS[name[0]])
    return ""


def plain(text):
    """The text without escape sequences."""

    def replace(match):
        kind = match.lastgroup
        if kind == "glyph":
            return _glyph(match["glyph"])
        if kind == "string":
            return STRINGS.get(match["string"][1:].strip("[]").lstrip("("), "")
        if kind == "one":
            return ONE.get(match["one"], "")
        return ""

    return ESCAPE.sub(replace, text)


def arguments(text):
    """A macro's arguments: words, or "quoted words" in which "" is a quote."""
    found = re.findall(r'"((?:[^"]|"")*)"?|(\S+)', re.sub(r'\\["#].*', "", text))
    return [(quoted.replace('""', '"') if not word else word) for quoted, word in found]


def _join(lines):
    """One paragraph: lines joined by a space, but not between two Chinese or Japanese characters."""
    text = ""
    for line in lines:
        between = "" if text and line and CJK.match(text[-1]) and CJK.match(line[0]) else " "
        text = text + between + line if text else line
    return re.sub(r"\s+", " ", text).strip()


class _Page:
    def __init__(self):
        self.done = []
        self.lines = []

    def text(self, text):
        text = plain(text).strip()
        if text:
            self.lines.append(text)

    def end_paragraph(self):
        joined = _join(self.lines)
        self.lines = []
        if joined:
            self.done.append(joined)


def _macro(page, name, rest):
    if name in FONT_WORDS:
        page.text(" ".join(arguments(rest)))
    elif name in FONT_PAIRS:
        page.text("".join(arguments(rest)))
    elif name in HEADINGS:
        page.end_paragraph()
        page.text(" ".join(arguments(rest)))
        page.end_paragraph()
    elif name == "IP":
        page.end_paragraph()
        page.text((arguments(rest) or [""])[0])
    elif name in BREAKS:
        page.end_paragraph()
    elif name in {"UR", "MT"}:
        page.text((arguments(rest) or [""])[0])
    elif name in {"UE", "ME"}:
        page.text("".join(arguments(rest)[:1]))


def paragraphs(source):
    """The page's paragraphs; None for a page in mdoc(7), or one that only includes another (.so)."""
    page = _Page()
    until = None  # the macro that ends what is being skipped
    depth = 0  # of \{ ... \} blocks, skipped as a whole
    for line in source.splitlines():
        control = re.match(r"[.'][ \t]*([A-Za-z0-9.]*)(.*)", line)
        name = control[1] if control else None
        if depth or (name in {"if", "ie", "el", "while"} and r"\{" in line):
            depth = max(0, depth + line.count(r"\{") - line.count(r"\}"))
        elif until:
            until = None if name == until else until
        elif name is None:
            page.text(line)
        elif name in {"Dd", "Sh", "so"}:
            return None
        elif name in SKIPPED_UNTIL:
            if name in {"nf", "EX", "TS"}:
                page.end_paragraph()
            until = SKIPPED_UNTIL[name]
        else:
            _macro(page, name, control[2])
    page.end_paragraph()
    return page.done
