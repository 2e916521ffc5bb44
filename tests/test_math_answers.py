"""Final answers in responses: which text is the answer, and which texts spell the same integer or formula."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluation.math.answers import extract_answer, integer_of, same_text


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        (r"so \boxed{45}", "45"),
        (r"\boxed{5}, no: \boxed{6}", "6"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\left\{ \frac{a}{b} : b \ne 0 \right\}}", r"\left\{ \frac{a}{b} : b \ne 0 \right\}"),
        (r"\boxed 7", "7"),
        (r"\fbox{7}", "7"),
        (r"\boxed{\boxed{7}}", "7"),
        (r"\boxed {7}", "7"),
        (r"\boxed{3} and \boxed{4}", "3, 4"),
        (r"$\boxed{3}$, $\boxed{4}$", "3, 4"),
        (r"$\boxed{3}$. \[\boxed{3}\]", "3"),
        (r"\boxed{3}. Now \boxed{4} and \boxed{5}", "4, 5"),
        (r"<think>\boxed{1}</think> \boxed{2}", "2"),
        (r"a</think>b \boxed{1}</think> \boxed{2}", "2"),
        (r"\boxedtext{1} \boxed{2}", "2"),
    ],
)
def test_the_last_box_after_the_thinking_is_the_answer(response: str, answer: str) -> None:
    extraction = extract_answer(response, "stop")
    assert (extraction.answer, extraction.status) == (answer, "answered")


@pytest.mark.parametrize(
    ("response", "finish_reason", "status"),
    [
        ("The answer is 7.", "stop", "no_answer"),
        (r"\boxed{}", "stop", "no_answer"),
        (r"\boxed{ }", "stop", "no_answer"),
        (r"\boxed{5} then \boxed{6", "stop", "no_answer"),
        (r"\boxed", "stop", "no_answer"),
        ("", "stop", "no_answer"),
        ("and then we", "length", "truncated"),
        (r"\boxed{6", "length", "truncated"),
        ("", "turns", "truncated"),
        ("<think>long thoughts", "length", "truncated"),
        (r"<think>perhaps \boxed{5}", "length", "truncated"),
        (r"<think>perhaps \boxed{5}", "stop", "truncated"),
        (r"<think>\boxed{5}</think> I give up.", "stop", "no_answer"),
    ],
)
def test_a_response_without_a_box_has_no_answer(response: str, finish_reason: str, status: str) -> None:
    extraction = extract_answer(response, finish_reason)
    assert extraction.answer is None
    assert extraction.status == status


def test_a_box_inside_thinking_that_the_prompt_opened_does_not_count() -> None:
    response = r"first guess \boxed{5}, let me check"
    assert extract_answer(response, "length").answer == "5"
    opened = extract_answer(response, "length", thinking_opened=True)
    assert (opened.answer, opened.status) == (None, "truncated")
    assert extract_answer(r"hm \boxed{5}</think> \boxed{6}", thinking_opened=True).answer == "6"


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("437 + 2*234 is not it, so it is **73**.\n\nFinal Answer: **73**", "73"),
        ("The final answer is 6300", "6300"),
        ("**6300**", "6300"),
        ("we get 5 and then 6300.", "6300"),
        (r"Answer: $\frac{1}{2}$", r"\frac{1}{2}"),
        (r"\boxed{8}, so the answer is 9", "8"),
        ("nothing to see", None),
    ],
)
def test_the_lenient_reading_is_used_on_request_only(response: str, answer: str | None) -> None:
    assert extract_answer(response, lenient=True).answer == answer
    if r"\boxed" not in response:
        assert extract_answer(response).answer is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("033", 33),
        ("$2304$.", 2304),
        ("2304.", 2304),
        ("2304.0", 2304),
        (r"1{,}037", 1037),
        (r"1\,037", 1037),
        ("1,000,000", 1000000),
        ("12 345", 12345),
        (r"\text{13}", 13),
        ("- 5", -5),
        ("\N{MINUS SIGN}5", -5),
        (r"\$32", 32),
        ("1,37", None),
        ("1,0377", None),
        ("3 7", None),
        ("3, 7", None),
        ("7.5", None),
        ("2^{10}", None),
        ("x", None),
        ("5!", None),
        (r"\frac{4}{2}", None),
        ("", None),
    ],
)
def test_spellings_of_integers(text: str, value: int | None) -> None:
    assert integer_of(text) == value


@given(st.integers(-(10**30), 10**30))
def test_every_integer_is_read_back(value: int) -> None:
    assert integer_of(str(value)) == value
    assert integer_of(f"${value:,}$") == value


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        (r"\dfrac{1}{2}", r"\frac{1}{2}", True),
        (r"\left( 1 , 2 \right)", "(1,2)", True),
        (r"x \leq 3", r"x\le 3", True),
        (r"x^{2}", "x^2", True),
        (r"\text{n is odd}", "n is odd", True),
        ("2 3", "23", False),
        ("(1,2)", "[1,2]", False),
        ("x^{12}", "x^12", False),
        ("1.5", "15", False),
    ],
)
def test_the_same_text_up_to_spelling(first: str, second: str, same: bool) -> None:
    assert same_text(first, second) is same
