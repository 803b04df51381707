"""Texts that would like to be more than texts."""

from __future__ import annotations

TAGS = (
    "<script>canary('script')</script>",
    "<img src=x onerror=canary('onerror')>",
    "<svg onload=canary('svg')><script>canary('svg script')</script></svg>",
    "<svg><a xlink:href=\"javascript:canary('xlink')\"><text y=20>x</text></a></svg>",
    "<iframe srcdoc=\"<script>parent.canary('srcdoc')</script>\"></iframe>",
    "<math><mi//xlink:href=\"data:x,<script>canary('math')</script>\">",
    "<a href=\"javascript:canary('href')\">a link</a>",
    "<style>@import 'https://evil.example/x.css'; body { display: none }</style>",
    "<body onload=canary('body')><details open ontoggle=canary('toggle')>",
    "<form action=https://evil.example/><button formaction=\"javascript:canary('form')\">go</button></form>",
    "<base href=https://evil.example/><meta http-equiv=refresh content=0;url=https://evil.example/>",
    "{{constructor.constructor('canary(1)')()}} ${canary('template')} <%= canary('erb') %>",
    "\"><script>canary('quote')</script> '-canary('single')-' `+canary('tick')+`",
    "]]><!--<script>canary('comment')</script>--> </textarea><script>canary('textarea')</script>",
)
LINKS = (
    "[one](javascript:canary('md'))",
    "[two]( java\tscript:canary('tab') )",
    "[three](data:text/html,<script>canary('data')</script>)",
    "[four](vbscript:canary('vb))",
    "[five](//evil.example/protocol)",
    '[six](https://ok.example/a"onmouseover="canary(\'attr\')")',
    "[seven][ref]\n\n[ref]: javascript:canary('ref')",
    "![eight](https://evil.example/pixel.png)",
    "![nine](x\" onerror=\"canary('img'))",
    "<javascript:canary('auto')>",
    "<https://ok.example/\"><script>canary('angle')</script>>",
    "[ten](JaVaScRiPt:canary('case'))",
    "[eleven](&#106;avascript:canary('entity'))",
    "[https://bank.example](https://evil.example/login)",
    "[twelve](\x01javascript:canary('control'))",
    "[thirteen](blob:https://ok.example/1) [fourteen](file:///etc/passwd)",
)
BIDI = "user\u202etxt.exe\u202c \u2066isolated\u2069 \u200bhidden\ufeff \u200ebefore\u200f \U000e0041tag"
CONTROLS = "bell\x07 escape\x1b[31mred null\u0001 delete\x7f c1\x9b tab\tnewline\r\nreturn\rend"
EVERYTHING = "\n\n".join((*TAGS, *LINKS, BIDI, CONTROLS))

LINE = "x" * 1_000_000
"""A line of a megabyte without a place to break it."""
EMOJI_LINE = "👩‍👩‍👧‍👦" * 40_000
COLUMNS = 400
TABLE = "\n".join(
    ["|".join(f"c{at}" for at in range(COLUMNS)), "|".join(["---"] * COLUMNS)]
    + ["|".join(str(at * row) for at in range(COLUMNS)) for row in range(500)]
)
"""200,000 cells."""
NESTED = "> " * 5_000 + "deep\n" + "".join("  " * at + "- item\n" for at in range(2_000))
MARKS = "*a **b __c _d ~~e `f [g](" * 8_000
SPACES = "# " + " " * 100_000 + "x\n\n`" + " " * 100_000 + "\n\n* " + " " * 100_000 + "y" + " \t" * 50_000
BRACKETS = "[" * 60_000 + "]" * 60_000 + "(" * 60_000
FENCES = "```\n" * 30_000
RULES = ("-" * 4_000 + " x\n") * 60 + ("| - " * 2_000 + "\n") * 40
LONG = {
    "line": LINE, "emoji": EMOJI_LINE, "table": TABLE, "nested": NESTED, "marks": MARKS, "spaces": SPACES,
    "brackets": BRACKETS, "fences": FENCES, "rules": RULES,
}  # fmt: skip
"""Texts that cost a careless reader minutes."""
PAGE = """<!doctype html><title>x</title><h1>A report</h1>
<script>document.body.append('RAN'); parent.canary('frame'); top.location = 'https://evil.example/'</script>
<img src="https://evil.example/pixel.png" onerror="parent.canary('frame img')">
<meta http-equiv="refresh" content="0;url=https://evil.example/">
<form action="/v1/jobs" method="post"><button>go</button></form><p style="color: red">styled</p>"""
DRAWING = """<svg xmlns="http://www.w3.org/2000/svg" width="80" height="40" onload="parent.canary('svg frame')">
<script>parent.canary('svg frame script')</script><rect width="80" height="40" fill="teal"/></svg>"""
