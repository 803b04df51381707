"""Citations: found by their form, looked up in what was seen, judged by excerpt."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.structured import StructuredOutputError
from planner.citation_check import Claim, check_claims, claims_of, read_unsupported
from planner.citations import MAX_CHARS, MAX_CITATIONS, Citation, Seen, find_citations, occurs, unseen_citations
from planner.step_check import Evidence
from registry.testing import ScriptedLLM


def found(text: str) -> list[tuple[str, str]]:
    return [(one.kind, one.text) for one in find_citations(text)]


def unseen(text: str, *seen: str) -> list[str]:
    return [one.text for one in unseen_citations(find_citations(text), Seen(seen))]


@pytest.mark.parametrize(
    ("text", "kind", "cited"),
    [
        ("See https://www.example.com/a/b.", "url", "https://www.example.com/a/b"),
        ("[page](https://en.wikipedia.org/wiki/Foo_(bar))", "url", "https://en.wikipedia.org/wiki/Foo_(bar)"),
        ("(see http://example.org/x?y=1&z=2),", "url", "http://example.org/x?y=1&z=2"),
        ("**https://example.org/bold**", "url", "https://example.org/bold"),
        ("doi:10.1000/xyz.123, and", "doi", "10.1000/xyz.123"),
        ("https://doi.org/10.1038/s41586-020-2649-2", "doi", "https://doi.org/10.1038/s41586-020-2649-2"),
        ("PMID: 12345678.", "pmid", "PMID: 12345678"),
        ("https://pubmed.ncbi.nlm.nih.gov/12345678/", "pmid", "https://pubmed.ncbi.nlm.nih.gov/12345678/"),
        ("in PMC1234567", "pmcid", "PMC1234567"),
        ("arXiv:2301.12345v2", "arxiv", "arXiv:2301.12345v2"),
        ("arXiv: hep-th/9901001", "arxiv", "arXiv: hep-th/9901001"),
        ("under 42 U.S.C. § 1983 he", "statute", "42 U.S.C. § 1983"),
        ("29 CFR 1910.134", "statute", "29 CFR 1910.134"),
        ("nach § 823 Abs. 1 BGB haftet", "statute", "§ 823 Abs. 1 BGB"),
        ("Art. 6 GDPR", "statute", "Art. 6 GDPR"),
        ("Article 17(1) of the GDPR", "statute", "Article 17(1) of the GDPR"),
        ("held in Brown v. Board of Education, 347 U.S. 483", "case", "Brown v. Board of Education"),
        ("See *Donoghue v Stevenson* on", "case", "Donoghue v Stevenson"),
    ],
)
def test_a_citation_is_found(text: str, kind: str, cited: str) -> None:
    assert found(text) == [(kind, cited)]


@pytest.mark.parametrize(
    "text",
    [
        "no citation here, only 10.5 per cent and version 2.0",
        "PostgreSQL vs. MySQL",
        "python -v. Run it",
        "x[1] = y[2]",
        "http://",
        "a list:\n1. one\n2. two",
        "§ alone, Art. of war",
        "",
    ],
)
def test_what_only_looks_like_one_is_not(text: str) -> None:
    assert found(text) == []


def test_numbered_references_need_a_list() -> None:
    text = (
        "It rains [1], it pours [2, 4] and [3].\n\nSources:\n[1] https://example.org/rain\n"
        "[2] Smith, John: Collected principles of imaginary meteorology. Oxford, 2001.\n"
        "[3] Roe v. Wade\n"
    )
    assert found(text) == [
        ("reference", "[2, 4]"),
        ("url", "https://example.org/rain"),
        ("reference", "[2] Smith, John: Collected principles of imaginary meteorology. Oxford, 2001."),
        ("case", "Roe v. Wade"),
    ]
    assert found("It rains [9].\n\n## References\n1. https://example.org/rain") == [
        ("reference", "[9]"),
        ("url", "https://example.org/rain"),
    ]
    assert unseen(text, "example.org/rain and Roe v Wade", "Imaginary meteorology: collected principles, J. Smith") == [
        "[2, 4]"
    ]


@pytest.mark.parametrize(
    ("cited", "seen"),
    [
        ("https://www.example.com/a/", "[a](http://example.com/a)"),
        ("https://example.com/a#part", "https://EXAMPLE.com/a/?utm_source=x"),
        ("https://example.com/a%20b", "https://example.com/a b"),
        ("https://example.com/?a=1&b=2", 'href="https://example.com/?a=1&amp;b=2"'),
        ("https://example.com", "https://www.example.com/some/page"),
        ("https://doi.org/10.1000/ABC", "doi: 10.1000/abc."),
        ("PMID 123456", "https://pubmed.ncbi.nlm.nih.gov/123456/"),
        ("https://pubmed.ncbi.nlm.nih.gov/123456/", "PMID: 123456"),
        ("arXiv:2301.12345", "https://arxiv.org/abs/2301.12345v3"),
        ("42 U.S.C. § 1983", "42 USC 1983"),
        ("§ 823 Abs. 1 BGB", "BGB, Paragraph 823: Wer vorsätzlich"),
        ("Art. 6 GDPR", "GDPR. Article 6 - Lawfulness"),
        ("§ 12", "see sections 3 and section 12"),
        ("Brown v. Board of Education", "BROWN vs. BOARD OF EDUCATION OF TOPEKA"),
    ],
)
def test_the_same_source_is_known_in_another_spelling(cited: str, seen: str) -> None:
    assert find_citations(cited)
    assert unseen(cited, "other text", seen) == []


@pytest.mark.parametrize(
    ("cited", "seen"),
    [
        ("https://example.com/a", "https://example.com/abc"),
        ("https://example.com/a", "https://example.com/a/b and https://example.com/a.html and https://example.com/a-b"),
        ("https://example.com/a", "https://notexample.com/a"),
        ("https://example.com", "https://example.community/"),
        ("https://doi.org/10.1000/12", "10.1000/123"),
        ("PMID 123456", "PMID 1234567, 0123456"),
        ("arXiv:2301.1234", "arXiv:2301.12345"),
        ("42 U.S.C. § 1983", "42 U.S.C. § 1985; 18 U.S.C. 1983a"),
        ("§ 823 Abs. 1 BGB", "§ 826 BGB"),
        ("Roe v. Wade", "Roe wrote to Wade; Monroe v Wadesworth"),
        ("https://example.com/a", ""),
    ],
)
def test_another_source_is_not_taken_for_it(cited: str, seen: str) -> None:
    assert len(unseen(cited, seen)) == 1


def test_each_unseen_source_is_named_once() -> None:
    assert unseen("https://a.example/x and again https://a.example/x and https://b.example/y") == [
        "https://a.example/x",
        "https://b.example/y",
    ]


PIECES = [
    "https://a.example/x", "10.1234/", "doi:10.1000/q", " v. ", "Roe", "§", "§ 5 BGB", "Art. 3 GG", "[1]", "[1", "]",
    "\n", "\n[1] ", "References", "\n1. ", "arXiv:", "2301.12345", "PMID: 1", "(", ")", " ", "A", "U.S.C.", "42 ", "é",
    "\ud800", "\u2028", "*", "%", "%20", "&amp;",
]  # fmt: skip
TEXTS = st.text(max_size=400) | st.lists(st.sampled_from(PIECES), max_size=80).map("".join)


@given(TEXTS)
def test_any_text_can_be_looked_through(text: str) -> None:
    citations = find_citations(text)
    place = 0
    for one in citations:
        assert place <= one.start < one.end <= len(text)
        assert one.text.strip() == one.text != ""
        place = one.end
    assert find_citations(text) == citations
    missing = unseen_citations(citations, Seen([text]))
    assert all(not one.keys for one in missing), "a text holds its own sources"
    assert {one.text for one in missing} <= {one.text for one in unseen_citations(citations, Seen([]))}


@given(TEXTS, TEXTS)
def test_seeing_more_never_takes_a_source_away(text: str, more: str) -> None:
    citations = find_citations(text)
    before = set(unseen_citations(citations, Seen([text[: len(text) // 2]])))
    assert set(unseen_citations(citations, Seen([text[: len(text) // 2], more]))) <= before


@pytest.mark.parametrize(
    "piece",
    ["https://", "https://a.b/(", "https://a.b/)", "(", "A v. ", "v. A", "[1", "[1,", "[1] a\n", "§ 1 ", "10.1234/",
     "Art. 1 ", "\n", " ", "A", "- ", "1. a\n", "42 U.S.C. ", "PMID: ", "arXiv:", "References\n", "%41", "&"],
)  # fmt: skip
def test_no_text_takes_long(piece: str) -> None:
    text = piece * (MAX_CHARS // len(piece) + 1)
    began = time.monotonic()
    citations = find_citations(text)
    unseen_citations(citations, Seen([text]))
    assert time.monotonic() - began < 10  # about 0.5 s at most: what is quadratic takes minutes
    assert len(citations) <= MAX_CITATIONS


def test_occurs_looks_further_than_the_first_place() -> None:
    assert occurs("a.example/x", "a.example/xy a.example/x-y a.example/x")
    assert not occurs("a.example/x", "")


SOURCE = Evidence("fetch_page(https://a.example/rain)", "Rain. " + "Filler text. " * 400 + "It rained 12 mm in May.")


class TestClaims:
    def test_passage_and_excerpt_stand_side_by_side(self) -> None:
        text = "In May it rained twelve millimetres (https://a.example/rain). Nothing else."
        (claim,) = claims_of(text, find_citations(text), [Evidence("other", "nothing"), SOURCE])
        assert "twelve millimetres" in claim.passage
        assert claim.excerpt.startswith("[fetch_page(https://a.example/rain)]")
        assert len(claim.excerpt) < 2_500

    def test_the_excerpt_is_the_part_that_has_the_passages_words(self) -> None:
        text = "It rained 12 mm according to https://a.example/rain"
        (claim,) = claims_of(text, find_citations(text), [SOURCE])
        assert "It rained 12 mm in May." in claim.excerpt

    def test_a_numbered_source_is_shown_where_it_is_cited(self) -> None:
        text = "It rained a lot [1]." + " Filler." * 200 + "\n\nSources:\n[1] https://a.example/rain\n"
        (claim,) = claims_of(text, find_citations(text), [SOURCE])
        assert "rained a lot [1]" in claim.passage

    def test_each_source_is_judged_once_and_only_if_seen(self) -> None:
        text = "https://a.example/rain, again https://a.example/rain, and https://b.example/no"
        assert [one.citation.text for one in claims_of(text, find_citations(text), [SOURCE])] == [
            "https://a.example/rain"
        ]

    @given(TEXTS, st.lists(st.builds(Evidence, st.text(max_size=20), TEXTS), max_size=4))
    def test_any_texts_give_claims(self, text: str, evidence: list[Evidence]) -> None:
        for claim in claims_of(text, find_citations(text), evidence):
            assert claim.passage
            assert claim.excerpt

    async def test_one_call_judges_them_all(self) -> None:
        answer = {"unsupported": [{"number": "2", "reason": "it says  May"}]}
        llm = ScriptedLLM([[("check_citations", answer)]])
        finding = await check_claims(llm, [claim("https://a.example/1"), claim("https://a.example/2")])
        assert not finding.passed
        assert "- https://a.example/2: it says May" in finding.feedback
        assert "a.example/1" not in finding.feedback
        assert '<entry number="2">' in llm.requests[0].messages[-1].content

    async def test_nothing_unsupported_passes_and_nothing_cited_needs_no_call(self) -> None:
        llm = ScriptedLLM([[("check_citations", {"unsupported": []})]])
        assert (await check_claims(llm, [claim("x")])).passed
        assert (await check_claims(llm, [])).passed
        assert len(llm.requests) == 1

    async def test_an_answer_that_cannot_be_read_is_no_verdict(self) -> None:
        with pytest.raises(StructuredOutputError):
            await check_claims(ScriptedLLM(lambda request: "Hm."), [claim("x")])

    @pytest.mark.parametrize(
        "value", [None, {}, {"unsupported": "all"}, {"unsupported": [{"number": 3}]}, {"unsupported": [{"number": 0}]}]
    )
    def test_what_names_no_entry_is_refused(self, value: Any) -> None:
        with pytest.raises(ValueError, match=r"unsupported|entry"):
            read_unsupported(value, 2)


def claim(cited: str) -> Claim:
    return Claim(Citation("url", cited, 0, len(cited), (cited,)), "a passage", "an excerpt")
