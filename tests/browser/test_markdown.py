"""Markdown of models, as nodes."""

from __future__ import annotations

import pytest

from .chromium import Watched
from .works import open_page, serving

pytestmark = pytest.mark.heavy

MADE = """async ([place, texts]) => {
    const { markdown, Markdown } = await import(place);
    return texts.map((text) => {
        const grown = document.createElement('div');
        const growing = new Markdown(grown);
        for (let at = 1; at <= text.length; at += 1) growing.show(text.slice(0, at));
        return [markdown(text).innerHTML, grown.innerHTML].map((html) => html.replaceAll(' dir="auto"', ''));
    });
}"""
LINK = ' rel="noopener noreferrer nofollow" target="_blank" title="https://ok.example/a">'
CASES = {
    "plain": "<p>plain</p>",
    "two\nlines\n\nand more": "<p>two\nlines</p><p>and more</p>",
    "hard  \nbreak": "<p>hard<br>break</p>",
    "# One\n## Two #\n####### seven": "<h3>One</h3><h4>Two</h4><p>####### seven</p>",
    "*em* **strong** ***both*** ~~gone~~": (
        "<p><em>em</em> <strong>strong</strong> <strong><em>both</em></strong> <del>gone</del></p>"
    ),
    "snake_case_name and 2 * 3 * 4": "<p>snake_case_name and 2 * 3 * 4</p>",
    "*open and **never closed": "<p>*open and **never closed</p>",
    "**bold *and em* inside**": "<p><strong>bold <em>and em</em> inside</strong></p>",
    r"\*not em\* \<b\>": "<p>*not em* &lt;b&gt;</p>",
    "`code <b>` and ``a ` b``": "<p><code>code &lt;b&gt;</code> and <code>a ` b</code></p>",
    "`open": "<p>`open</p>",
    "[text](https://ok.example/a)": f'<p><a href="https://ok.example/a"{LINK}text</a></p>',
    '[*em*](https://ok.example/a "title")': f'<p><a href="https://ok.example/a"{LINK}<em>em</em></a></p>',
    "see https://ok.example/a.": f'<p>see <a href="https://ok.example/a"{LINK}https://ok.example/a</a>.</p>',
    "<https://ok.example/a>": f'<p><a href="https://ok.example/a"{LINK}https://ok.example/a</a></p>',
    "[x](javascript:alert(1))": "<p>x (javascript:alert(1))</p>",
    "[x](/v1/jobs) [y] [z](": "<p>x (/v1/jobs) [y] [z](</p>",
    "![alt](https://ok.example/a)": f'<p><a href="https://ok.example/a"{LINK}[picture] alt</a></p>',
    "[bank.example/in](https://ok.example/a)": (
        f'<p><a href="https://ok.example/a"{LINK}bank.example/in</a> (ok.example)</p>'
    ),
    "[http://10.0.0.1](https://ok.example/a)": (
        f'<p><a href="https://ok.example/a"{LINK}http://10.0.0.1</a> (ok.example)</p>'
    ),
    "[ok.example/b](https://ok.example/a)": f'<p><a href="https://ok.example/a"{LINK}ok.example/b</a></p>',
    "soft\u00adly \u2764\ufe0f\ufe0f a\U000e0100 \u8fba\U000e0100": (
        "<p>soft⟨U+00AD⟩ly \u2764\ufe0f⟨U+FE0F⟩ a⟨U+E0100⟩ \u8fba\U000e0100</p>"
    ),
    "<b>no</b> &amp; entity": "<p>&lt;b&gt;no&lt;/b&gt; &amp;amp; entity</p>",
    "- a\n- b\n  - c\n- d": "<ul><li>a</li><li><p>b</p><ul><li>c</li></ul></li><li>d</li></ul>",
    "3. a\n4. b": '<ol start="3"><li>a</li><li>b</li></ol>',
    "1. a\n\n   more\n2. b": "<ol><li><p>a</p><p>more</p></li><li>b</li></ol>",
    "> quoted\n> > twice\n\nafter": (
        "<blockquote><p>quoted</p><blockquote><p>twice</p></blockquote></blockquote><p>after</p>"
    ),
    "```python\na = 1\n\n<b>\n```\nafter": (
        '<pre tabindex="0" data-language="python"><code>a = 1\n\n&lt;b&gt;</code></pre><p>after</p>'
    ),
    "~~~\nopen": '<pre tabindex="0"><code>open</code></pre>',
    "    indented": '<pre tabindex="0"><code>indented</code></pre>',
    "a\n\n---\n\nb": "<p>a</p><hr><p>b</p>",
    "|a|b|\n|:-|-:|\n|1|`x\\|y`|\n\nafter": (
        '<div class="wide" tabindex="0" role="group" aria-label="Table"><table><thead><tr><th>a</th>'
        '<th class="end">b</th></tr></thead><tbody><tr><td>1</td><td class="end"><code>x|y</code></td></tr></tbody>'
        "</table></div><p>after</p>"
    ),
    "a | b\nno table": "<p>a | b\nno table</p>",
    "": "",
}


async def test_it_becomes_what_it_says_also_while_it_grows(database_url: str, watched: Watched) -> None:
    page = watched.page
    async with serving(database_url, watched) as service:
        await open_page(page, service.url)
        place = await page.evaluate("document.querySelector('script').src.replace('main.mjs', 'markdown.mjs')")
        found = await page.evaluate(MADE, [place, list(CASES)])
        for (text, expected), (made, grown) in zip(CASES.items(), found, strict=True):
            assert made == expected, text
            assert grown == made, text
